"""The sections of the report of a self-supervised run: each turns facts into markup, or into None where they are missing."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping
from typing import NamedTuple

from vitrail.analysis.pictures import thumbnail
from vitrail.reports import charts as draw
from vitrail.reports import components, curves
from vitrail.reports.components import charts, further, header, lead, opened, pane, photograph, scrolled, typed
from vitrail.reports.curves import short_percent
from vitrail.reports.facts import PretrainFacts
from vitrail.reports.html import SHORT_SIDE_OF_A_DRAWING, Markup, join, tag
from vitrail.reports.wording import THIN, decimal, percent, sentence

# of the records; all others are measurements of the objective
OWN_COLUMNS = {"step", "epoch", "images", "loss", "lr", "seconds", "images_per_second", "data_wait"}
OWN_COLUMNS |= {"knn", "chance", "effective_rank", "spread"}


class Measure(NamedTuple):
    """How a measurement of an objective is told."""

    name: str
    gloss: str
    words: Callable[[float], str]


DECIBELS = f"{{:.3g}}{THIN}dB".format
MEASURES = {
    "accuracy": Measure("Accuracy", "of the answers to the objective’s own question", short_percent),
    "explained": Measure("Explained", "of what hidden patches vary by inside; 0 is their mean colour", short_percent),
    "rmse": Measure("Error of colours", "of corrupted patches, on the scale from 0 to 1", "{:.3g}".format),
    "batch_spread": Measure(
        "Spread in the batch", "of the features that are compared; 0 is one point", "{:.2g}".format
    ),
    "psnr": Measure("PSNR", "how near the images it learns from are rebuilt", DECIBELS),
    "psnr_held_out": Measure(
        "PSNR, held out", "how near images it did not learn from are rebuilt; more is nearer", DECIBELS
    ),
    "psnr_mean_colour": Measure("PSNR of mean colours", "of telling each patch by its mean colour alone", DECIBELS),
    "perplexity": Measure("Codes in a batch", "how many are in use, were all used equally often", "{:.4g}".format),
    "codes_in_use": Measure(
        "Codes in use", "on images it did not learn from, were all used equally often", "{:.4g}".format
    ),
}
UNASKED = "No labels were asked, so it is not known what the features are good for: the loss compares runs of one objective only."
RANK = "how many directions the features use"
SPREAD = "about 1 is all over the sphere, 0 is one point"
NEIGHBOURS = "the class that most of an image’s nearest neighbours have, by their features"
RANK_WORDS, SPREAD_WORDS = "{:.1f}".format, "{:.2g}".format


def measured(facts: PretrainFacts) -> list[str]:
    """The columns of numbers that are measurements of the objective, in the order of their first record."""
    found = {
        key: None
        for record in facts.records
        for key, value in record.items()
        if key not in OWN_COLUMNS and isinstance(value, int | float)
    }
    return list(found)


def measure_of(column: str) -> Measure:
    return MEASURES.get(
        column, Measure(sentence(column.replace("_", " ")), "as the objective measures it", "{:.4g}".format)
    )


def headline(facts: PretrainFacts) -> Markup:
    """The accuracy of nearest neighbours where there are labels to ask, else the loss; below it the other figures."""
    about = tag("p", tag("strong", facts.objective), f": {facts.about_objective}" if facts.about_objective else None)
    accuracy, loss, nearness = facts.last("knn"), facts.last("loss"), facts.last("psnr_held_out")
    if facts.tokenizes and nearness is not None:
        head = opened(DECIBELS(nearness), "PSNR, held out", tag("p", rebuilt(facts, nearness)), about)
    elif accuracy is not None:
        drawn = tag("div", draw.gain_strip(accuracy, facts.untrained("knn"), facts.last("chance")), class_="strip")
        head = opened(percent(accuracy), "kNN accuracy", tag("p", gained(facts, accuracy)), about, drawn)
    elif loss is not None:
        head = opened(decimal(loss, 4), "loss", about, None if facts.tokenizes else lead(UNASKED))
    else:
        head = tag("div", about, class_="headline bare")
    return join(head, further(other_figures(facts)))


def gained(facts: PretrainFacts, accuracy: float) -> str:
    """What training brought, in plain words."""
    named = f"By the nearest neighbours of their features, {percent(accuracy)} of the images get their class. "
    before = facts.untrained("knn")
    if before is None:
        return f"{named}No label was used in training."
    points = (accuracy - before) * 100
    change = f"{abs(points):.1f} points were {'gained' if points >= 0 else 'lost'} without a label"
    return f"{named}Before training it was {percent(before)}: {change}."


def rebuilt(facts: PretrainFacts, nearness: float) -> str:
    """What the codes of a tokenizer tell of an image, in plain words."""
    plain = facts.last("psnr_mean_colour")
    if plain is None:
        return "How near images it did not learn from are rebuilt from their codes."
    verdict = (
        "the codes tell more than that" if nearness > plain else "the codes tell less than that yet: train it longer"
    )
    return f"Telling each patch by its mean colour alone gives {DECIBELS(plain)}: {verdict}."


def other_figures(facts: PretrainFacts) -> list[tuple[str, str, str]]:
    """The loss, the health of the features and what the objective measured, each with its meaning."""
    rows = []
    losses = [value for value, _ in curves.finite(facts.records, "loss")]
    if losses and (facts.tokenizes or facts.last("knn") is not None):
        rows.append(("Loss", decimal(losses[-1]), f"began at {decimal(losses[0])}"))
    if (now := facts.after) is not None:
        ranked, spread = RANK, SPREAD
        if (before := facts.before) is not None:
            ranked += f"; {RANK_WORDS(before.rank)} before training"
            spread += f"; {SPREAD_WORDS(before.spread)} before training"
        rows.append(("Effective rank", f"{RANK_WORDS(now.rank)} of {now.width:,}", ranked))
        rows.append(("Spread", SPREAD_WORDS(now.spread), spread))
    for column in measured(facts):
        if facts.tokenizes and column == "psnr_held_out":  # the head of the page
            continue
        name, gloss, words = measure_of(column)
        rows += [(name, words(value), gloss) for value in [facts.last(column)] if value is not None]
    return rows


def alarm(facts: PretrainFacts) -> Markup | None:
    """A collapse, said before all else."""
    if facts.diagnosis is None:
        return None
    title, _, figures = facts.diagnosis.partition(": ")
    words = "An encoder in this state tells images apart badly, however low its loss."
    if curves.finite(facts.records, "effective_rank"):
        words += " The curves below show when it happened."
    return tag("aside", tag("h2", title), tag("p", sentence(figures)), lead(words), class_="notes alarm", role="alert")


def training_curves(facts: PretrainFacts, plots: Mapping[str, Markup]) -> Markup | None:
    """The charts over the training step."""
    words = [*curves.best(facts.records, "knn", "kNN accuracy"), *curves.troubles(facts.records)]
    return charts(words, list(plots.values()))


def pictures(facts: PretrainFacts) -> Markup | None:
    """A row for each image: what the objective sees of it and what it answers."""
    if not facts.panels or not len(facts.panels[0].pictures):
        return None
    count = len(facts.panels[0].pictures)
    assert all(len(each.pictures) == count for each in facts.panels), "panels of different images"
    meanings = [join(tag("dt", sentence(each.name)), tag("dd", each.caption)) for each in facts.panels if each.caption]
    rows = []
    for image in range(count):
        shown = (
            pane(photograph(thumbnail(each.pictures[image]), f"Image {image + 1}, {each.name}"), each.name)
            for each in facts.panels
        )
        rows.append(tag("li", *shown))
    small = max(facts.panels[0].pictures.shape[2:]) <= SHORT_SIDE_OF_A_DRAWING
    grid = tag("ul", *rows, class_="panels small" if small else "panels", style=f"--panels:{len(facts.panels)}")
    explained = tag("dl", *meanings, class_="facts") if meanings else None
    return join(tag("h2", "What the objective sees and answers"), explained, grid)


def health(facts: PretrainFacts) -> Markup | None:
    """Each figure of the features before and after training, and what it means."""
    now, before = facts.after, facts.before
    if now is None:
        return None
    about_rank = f"{RANK}, of {now.width:,}; a low one is a dimensional collapse"
    about_spread = f"how far apart they lie: {SPREAD}, which is a complete collapse"
    rank, spread = (None, None) if before is None else (before.rank, before.spread)
    lines = [
        health_row("Effective rank", about_rank, rank, now.rank, RANK_WORDS),
        health_row("Spread", about_spread, spread, now.spread, SPREAD_WORDS),
    ]
    if (accuracy := facts.last("knn")) is not None:
        lines.append(health_row("kNN accuracy", NEIGHBOURS, facts.untrained("knn"), accuracy, percent))
    table = tag("table", header(("of the features", "before training", "now")), tag("tbody", *lines))
    verdict = "Nothing points to a collapse." if facts.diagnosis is None else facts.diagnosis
    return join(tag("h2", "Are the features in good health?"), lead(verdict), scrolled(table, "Health of the features"))


def health_row(name: str, gloss: str, before: float | None, now: float, words: Callable[[float], str]) -> Markup:
    named = tag("th", name, tag("span", sentence(gloss), class_="gloss"), scope="row")
    return tag("tr", named, tag("td", told(before, words)), tag("td", tag("strong", words(now))))


def told(value: float | None, words: Callable[[float], str]) -> str:
    return "–" if value is None else words(value)


def following(facts: PretrainFacts) -> Markup:
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
    steps = (join(tag("p", words), typed(command)) for words, command in commands.items())
    title = f"What to do with the {'tokenizer' if facts.tokenizes else 'encoder'}"
    return join(tag("h2", title), tag("div", *steps, class_="steps"))


def run(facts: PretrainFacts) -> Markup:
    """What to repeat to get the same, and what it was measured on."""
    return components.run(facts, {"Objective": facts.objective})
