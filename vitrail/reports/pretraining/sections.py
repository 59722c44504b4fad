"""The sections of the report of a self-supervised run: each turns facts into markup, or into None where they are missing."""

from __future__ import annotations

import shlex
from collections.abc import Mapping

from vitrail.analysis.pictures import to_thumbnail
from vitrail.reports import charts as draw
from vitrail.reports import components, curves
from vitrail.reports.components import (
    charts,
    header,
    lead,
    list_figures,
    make_scrollable,
    pane,
    photograph,
    show_commands,
    show_figure,
)
from vitrail.reports.facts import PretrainingFacts
from vitrail.reports.html import SHORT_SIDE_OF_A_DRAWING, Markup, join, tag
from vitrail.reports.metric_names import DECIBELS, METRICS, Metric, metric_of
from vitrail.reports.wording import decimal, percent, sentence

# of the records; all others are measurements of the objective
OWN_COLUMNS = {"step", "epoch", "images", "loss", "lr", "seconds", "images_per_second", "data_wait"}
OWN_COLUMNS |= {"knn", "chance", "effective_rank", "spread"}


UNASKED = "No labels were asked, so it is not known what the features are good for: the loss compares runs of one objective only."


def measurements(facts: PretrainingFacts) -> list[str]:
    """The columns of numbers that are measurements of the objective, in the order of their first record."""
    columns = {
        name: None
        for record in facts.records
        for name, value in record.items()
        if name not in OWN_COLUMNS and isinstance(value, int | float)
    }
    return list(columns)


def headline(facts: PretrainingFacts) -> Markup:
    """The accuracy of nearest neighbours where there are labels to ask, else the loss; below it the other figures."""
    about = tag("p", tag("strong", facts.objective), f": {facts.about_objective}" if facts.about_objective else None)
    accuracy, loss, nearness = facts.last("knn"), facts.last("loss"), facts.last("psnr_held_out")
    if facts.tokenizes and nearness is not None:
        name, words = METRICS["psnr_held_out"].heading, tag("p", explain_rebuilding(facts, nearness))
        head = show_figure(DECIBELS(nearness), name, words, about)
    elif accuracy is not None:
        drawn = tag("div", draw.gain_strip(accuracy, facts.untrained("knn"), facts.last("chance")), class_="strip")
        head = show_figure(
            percent(accuracy), METRICS["knn"].label, tag("p", explain_gain(facts, accuracy)), about, drawn
        )
    elif loss is not None:
        head = show_figure(decimal(loss, 4), "loss", about, None if facts.tokenizes else lead(UNASKED))
    else:
        head = tag("div", about, class_="headline bare")
    return join(head, list_figures(other_figures(facts)))


def explain_gain(facts: PretrainingFacts, accuracy: float) -> str:
    """What training brought, in plain words."""
    named = f"By the nearest neighbours of their features, {percent(accuracy)} of the images get their class. "
    before = facts.untrained("knn")
    if before is None:
        return f"{named}No label was used in training."
    points = (accuracy - before) * 100
    change = f"{abs(points):.1f} points were {'gained' if points >= 0 else 'lost'} without a label"
    return f"{named}Before training it was {percent(before)}: {change}."


def explain_rebuilding(facts: PretrainingFacts, nearness: float) -> str:
    """What the codes of a tokenizer tell of an image, in plain words."""
    plain = facts.last("psnr_mean_colour")
    if plain is None:
        return "How near images it did not learn from are rebuilt from their codes."
    verdict = (
        "the codes tell more than that" if nearness > plain else "the codes tell less than that yet: train it longer"
    )
    return f"Telling each patch by its mean colour alone gives {DECIBELS(plain)}: {verdict}."


def other_figures(facts: PretrainingFacts) -> list[tuple[str, str, str]]:
    """The loss, the health of the features and what the objective measured, each with its meaning."""
    rows = []
    losses = [value for value, _ in curves.finite(facts.records, "loss")]
    if losses and (facts.tokenizes or facts.last("knn") is not None):
        rows.append(("Loss", decimal(losses[-1]), f"began at {decimal(losses[0])}"))
    if (now := facts.after) is not None:
        rank, spread = METRICS["effective_rank"], METRICS["spread"]
        rank_gloss, spread_gloss = rank.gloss, spread.gloss
        if (before := facts.before) is not None:
            rank_gloss += f"; {rank.format(before.rank)} before training"
            spread_gloss += f"; {spread.format(before.spread)} before training"
        rows.append((rank.heading, f"{rank.format(now.rank)} of {now.width:,}", rank_gloss))
        rows.append((spread.heading, spread.format(now.spread), spread_gloss))
    for column in measurements(facts):
        if facts.tokenizes and column == "psnr_held_out":  # the head of the page
            continue
        metric, value = metric_of(column), facts.last(column)
        if value is not None:
            rows.append((metric.heading, metric.format(value), metric.gloss))
    return rows


def alarm(facts: PretrainingFacts) -> Markup | None:
    """A collapse, said before all else."""
    if facts.diagnosis is None:
        return None
    title, _, figures = facts.diagnosis.partition(": ")
    words = "An encoder in this state tells images apart badly, however low its loss."
    if curves.finite(facts.records, "effective_rank"):
        words += " The curves below show when it happened."
    return tag("aside", tag("h2", title), tag("p", sentence(figures)), lead(words), class_="notes alarm", role="alert")


def training_curves(facts: PretrainingFacts, plots: Mapping[str, Markup]) -> Markup | None:
    """The charts over the training step."""
    words = [*curves.best(facts.records, "knn", METRICS["knn"].label), *curves.troubles(facts.records)]
    return charts(words, list(plots.values()))


def pictures(facts: PretrainingFacts) -> Markup | None:
    """A row for each image: what the objective sees of it and what it answers."""
    if not facts.panels or not len(facts.panels[0].pictures):
        return None
    count = len(facts.panels[0].pictures)
    assert all(len(panel.pictures) == count for panel in facts.panels), "panels of different images"
    meanings = [
        join(tag("dt", sentence(panel.name)), tag("dd", panel.caption)) for panel in facts.panels if panel.caption
    ]
    rows = []
    for image in range(count):
        shown = (
            pane(photograph(to_thumbnail(panel.pictures[image]), f"Image {image + 1}, {panel.name}"), panel.name)
            for panel in facts.panels
        )
        rows.append(tag("li", *shown))
    small = max(facts.panels[0].pictures.shape[2:]) <= SHORT_SIDE_OF_A_DRAWING
    grid = tag("ul", *rows, class_="panels small" if small else "panels", style=f"--panels:{len(facts.panels)}")
    explained = tag("dl", *meanings, class_="facts") if meanings else None
    return join(tag("h2", "What the objective sees and answers"), explained, grid)


def health(facts: PretrainingFacts) -> Markup | None:
    """Each figure of the features before and after training, and what it means."""
    now, before = facts.after, facts.before
    if now is None:
        return None
    rank, spread, knn = METRICS["effective_rank"], METRICS["spread"], METRICS["knn"]
    about_rank = f"{rank.gloss}, of {now.width:,}; a low one is a dimensional collapse"
    about_spread = f"how far apart they lie: {spread.gloss}, which is a complete collapse"
    old_rank, old_spread = (None, None) if before is None else (before.rank, before.spread)
    lines = [
        health_row(rank, about_rank, old_rank, now.rank),
        health_row(spread, about_spread, old_spread, now.spread),
    ]
    if (accuracy := facts.last("knn")) is not None:
        lines.append(health_row(knn, knn.gloss, facts.untrained("knn"), accuracy))
    table = tag("table", header(("of the features", "before training", "now")), tag("tbody", *lines))
    verdict = "Nothing points to a collapse." if facts.diagnosis is None else facts.diagnosis
    return join(
        tag("h2", "Are the features in good health?"), lead(verdict), make_scrollable(table, "Health of the features")
    )


def health_row(metric: Metric, gloss: str, before: float | None, now: float) -> Markup:
    name = tag("th", metric.heading, tag("span", sentence(gloss), class_="gloss"), scope="row")
    return tag("tr", name, tag("td", format_known(before, metric)), tag("td", tag("strong", metric.format(now))))


def format_known(value: float | None, metric: Metric) -> str:
    return "–" if value is None else metric.format(value)


def following(facts: PretrainingFacts) -> Markup:
    """The commands that make something of the encoder, or the tokenizer."""
    # images that were not asked for labels may have none
    data = facts.data if facts.data and (facts.tokenizes or facts.last("knn") is not None) else "LABELLED-IMAGES"
    run, data = shlex.quote(facts.location), shlex.quote(data)
    commands = {
        "Train a classifier that starts from it:": f"vitrail train {data} --init {run}",
        "Ask what its features know, without training it:": f"vitrail probe {run} {data} --protocol knn",
    }
    if facts.tokenizes:
        commands = {
            "Train an encoder to predict its codes:": f"vitrail pretrain {data} --objective beit --tokenizer {run}"
        }
    steps = (join(tag("p", words), show_commands(command)) for words, command in commands.items())
    title = f"What to do with the {'tokenizer' if facts.tokenizes else 'encoder'}"
    return join(tag("h2", title), tag("div", *steps, class_="steps"))


def run(facts: PretrainingFacts) -> Markup:
    """What to repeat to get the same, and what it was measured on."""
    return components.run(facts, {"Objective": facts.objective})
