"""The sections of the report of a self-supervised run. Each function returns None if its data are missing."""

from __future__ import annotations

import shlex
from collections.abc import Mapping

from vitrail.analysis.pictures import to_thumbnail
from vitrail.markup import Markup, join, tag
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
from vitrail.reports.html import SHORT_SIDE_OF_A_DRAWING
from vitrail.reports.metric_names import DECIBELS, METRICS, Metric, metric_of
from vitrail.text import decimal, percent, sentence

# common columns of the records; all others are measurements of the objective
OWN_COLUMNS = {"step", "epoch", "images", "loss", "lr", "seconds", "images_per_second", "data_wait"}
OWN_COLUMNS |= {"knn", "chance", "effective_rank", "spread"}


UNASKED = "Features were not evaluated with labels. The loss is comparable only between runs of the same objective."


def measurements(facts: PretrainingFacts) -> list[str]:
    """Returns the numeric columns that are measurements of the objective, in the order of their first record."""
    columns = {
        name: None
        for record in facts.records
        for name, value in record.items()
        if name not in OWN_COLUMNS and isinstance(value, int | float)
    }
    return list(columns)


def headline(facts: PretrainingFacts) -> Markup:
    """Returns the kNN accuracy if there are labels, else the loss, followed by the other metrics."""
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
    """Returns sentences about the kNN accuracy and its change by training."""
    named = f"A k-nearest-neighbour classifier on the features is correct for {percent(accuracy)} of the images. "
    before = facts.untrained("knn")
    if before is None:
        return f"{named}No labels were used in training."
    points = (accuracy - before) * 100
    change = f"{'gained' if points >= 0 else 'lost'} {abs(points):.1f} percentage points"
    return f"{named}Training without labels {change}; before training the accuracy was {percent(before)}."


def explain_rebuilding(facts: PretrainingFacts, nearness: float) -> str:
    """Returns a sentence that compares the reconstruction of a tokenizer with that by mean colours."""
    plain = facts.last("psnr_mean_colour")
    if plain is None:
        return "Reconstruction of held-out images from their codes."
    verdict = (
        "the codes carry more information"
        if nearness > plain
        else "the codes carry less information, so longer training is needed"
    )
    return f"Replacing each patch by its mean colour gives {DECIBELS(plain)}; {verdict}."


def other_figures(facts: PretrainingFacts) -> list[tuple[str, str, str]]:
    """Returns loss, feature health and measurements of the objective as (name, value, description)."""
    rows = []
    losses = [value for value, _ in curves.finite(facts.records, "loss")]
    if losses and (facts.tokenizes or facts.last("knn") is not None):
        rows.append(("Loss", decimal(losses[-1]), f"initially {decimal(losses[0])}"))
    if (now := facts.after) is not None:
        rank, spread = METRICS["effective_rank"], METRICS["spread"]
        rank_gloss, spread_gloss = rank.gloss, spread.gloss
        if (before := facts.before) is not None:
            rank_gloss += f"; {rank.format(before.rank)} before training"
            spread_gloss += f"; {spread.format(before.spread)} before training"
        rows.append((rank.heading, f"{rank.format(now.rank)} of {now.width:,}", rank_gloss))
        rows.append((spread.heading, spread.format(now.spread), spread_gloss))
    for column in measurements(facts):
        if facts.tokenizes and column == "psnr_held_out":  # shown in the headline
            continue
        metric, value = metric_of(column), facts.last(column)
        if value is not None:
            rows.append((metric.heading, metric.format(value), metric.gloss))
    return rows


def alarm(facts: PretrainingFacts) -> Markup | None:
    """Returns the warning about a collapse, or None without one."""
    if facts.diagnosis is None:
        return None
    title, _, figures = facts.diagnosis.partition(": ")
    words = "The features of a collapsed encoder barely distinguish images, even if the loss is low."
    if curves.finite(facts.records, "effective_rank"):
        words += " The curves below show when the collapse occurred."
    return tag("aside", tag("h2", title), tag("p", sentence(figures)), lead(words), class_="notes alarm", role="alert")


def training_curves(facts: PretrainingFacts, plots: Mapping[str, Markup]) -> Markup | None:
    """Returns the charts against the training step."""
    words = [*curves.best(facts.records, "knn", METRICS["knn"].label), *curves.troubles(facts.records)]
    return charts(words, list(plots.values()))


def pictures(facts: PretrainingFacts) -> Markup | None:
    """Returns a row of panels for each image: inputs and outputs of the objective."""
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
    return join(tag("h2", "Inputs and outputs of the objective"), explained, grid)


def health(facts: PretrainingFacts) -> Markup | None:
    """Returns the table of feature health before and after training."""
    now, before = facts.after, facts.before
    if now is None:
        return None
    rank, spread, knn = METRICS["effective_rank"], METRICS["spread"], METRICS["knn"]
    about_rank = f"{rank.gloss}, at most {now.width:,}; a low value indicates a dimensional collapse"
    about_spread = f"{spread.gloss} (complete collapse)"
    old_rank, old_spread = (None, None) if before is None else (before.rank, before.spread)
    lines = [
        health_row(rank, about_rank, old_rank, now.rank),
        health_row(spread, about_spread, old_spread, now.spread),
    ]
    if (accuracy := facts.last("knn")) is not None:
        lines.append(health_row(knn, knn.gloss, facts.untrained("knn"), accuracy))
    table = tag("table", header(("metric", "before training", "after training")), tag("tbody", *lines))
    verdict = "No sign of collapse." if facts.diagnosis is None else facts.diagnosis
    return join(tag("h2", "Feature health"), lead(verdict), make_scrollable(table, "Feature health"))


def health_row(metric: Metric, gloss: str, before: float | None, now: float) -> Markup:
    name = tag("th", metric.heading, tag("span", sentence(gloss), class_="gloss"), scope="row")
    return tag("tr", name, tag("td", format_known(before, metric)), tag("td", tag("strong", metric.format(now))))


def format_known(value: float | None, metric: Metric) -> str:
    return "–" if value is None else metric.format(value)


def following(facts: PretrainingFacts) -> Markup:
    """Returns commands that use the encoder or the tokenizer."""
    # the images may have no labels unless the run evaluated with them
    data = facts.data if facts.data and (facts.tokenizes or facts.last("knn") is not None) else "LABELLED-IMAGES"
    run, data = shlex.quote(facts.location), shlex.quote(data)
    commands = {
        "Train a classifier from these weights:": f"vitrail train {data} --init {run}",
        "Evaluate the frozen features:": f"vitrail probe {run} {data} --protocol knn",
    }
    if facts.tokenizes:
        commands = {
            "Pretrain an encoder that predicts the codes:": f"vitrail pretrain {data} --objective beit --tokenizer {run}"
        }
    steps = (join(tag("p", words), show_commands(command)) for words, command in commands.items())
    return join(tag("h2", "Next steps"), tag("div", *steps, class_="steps"))


def run(facts: PretrainingFacts) -> Markup:
    """Returns the run details: command, settings and environment."""
    return components.run(facts, {"Objective": facts.objective})
