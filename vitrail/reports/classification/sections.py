"""The sections of the report, in reading order: each turns facts into markup, or into None where they are missing."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from vitrail.reports import charts as draw
from vitrail.reports import components, curves
from vitrail.reports.components import (
    charts,
    header,
    lead,
    list_figures,
    make_scrollable,
    overlay_attention,
    photograph,
    show_figure,
)
from vitrail.reports.facts import ClassificationFacts, Mistake
from vitrail.reports.html import Markup, data_uri, join, tag
from vitrail.reports.metric_names import METRICS
from vitrail.reports.wording import decimal, listing, percent, plural, shorten

CURVES = ("loss", "accuracy", "average-precision", "learning-rate", "speed")
OTHERS = ("top5", "f1_macro", "f1_micro", "nll", "ece", "brier")


def headline(facts: ClassificationFacts) -> Markup:
    """The one figure, its interval, and what it means in a sentence."""
    key = "map" if facts.multi_label else "top1"
    value, low, high = (facts.figures.get(name, math.nan) for name in (key, f"{key}_low", f"{key}_high"))
    if not math.isfinite(value):
        return tag("div", explain_unjudged(facts), class_="headline bare")
    words = [explanation(facts)]
    if math.isfinite(low) and math.isfinite(high):
        ends = f"{percent(low)} to {percent(high)} ({percent(0.95, 0)} interval)"
        strip = draw.interval_strip(value, low, high, commonest_share(facts))
        words += [lead(f"On other images of the same kind, expect {ends}."), tag("div", strip, class_="strip")]
    return join(show_figure(percent(value), METRICS[key].label, *words), list_figures(other_figures(facts)))


def explain_unjudged(facts: ClassificationFacts) -> Markup:
    """What can be said where no figure was measured."""
    losses = [record["loss"] for record in facts.records if "loss" in record]
    last = f" The training loss ended at {decimal(float(losses[-1]), 4)}." if losses else None
    return tag("p", "No labelled images were held out, so nothing is known about the accuracy on new images.", last)


def explanation(facts: ClassificationFacts) -> Markup:
    """The figure in plain words."""
    where = f"{facts.split_name} image"
    if not facts.judged:
        return tag("p", f"Measured on the {where}s.")
    count, of = len(facts.metric.keys), plural(len(facts.classes), "class", "classes")
    if facts.multi_label:
        means = f"For each label the images are ranked by its probability; {percent(1)} puts all that have it first."
        return tag("p", f"Measured on {plural(count, where)} with labels of {of}. {means}")
    right = int(np.trace(facts.metric.confusion))
    wrong = "it is never wrong."
    if right < count:
        odds = count / (count - right)
        wrong = f"it is wrong about {plural(count - right, 'image')}, one in {odds:.{0 if odds >= 10 else 1}f}."
    warning = " These are the images it was trained on: new ones will do worse." if facts.split == "train" else ""
    names = f"Of {plural(count, where)} of {of}, the model names "
    return tag("p", names, tag("strong", f"{right:,} correctly"), f"; {wrong}{warning}")


def commonest_share(facts: ClassificationFacts) -> float | None:
    """What always answering the most frequent class of the judged images would reach."""
    if facts.multi_label or not facts.judged:
        return None
    return float(np.bincount(facts.metric.targets).max() / len(facts.metric.keys))


def other_figures(facts: ClassificationFacts) -> list[tuple[str, str, str]]:
    """The other figures, each with its meaning; top-5 only where it says something."""
    rows = []
    for key in OTHERS:
        if key in facts.figures and not (key == "top5" and len(facts.classes) <= 5):
            metric = METRICS[key]
            rows.append((metric.heading, metric.format(facts.figures[key]), metric.gloss))
    return rows


def training_curves(facts: ClassificationFacts, plots: Mapping[str, Markup]) -> Markup | None:
    """The charts over the training step."""
    key, name = ("val_map", METRICS["map"].label) if facts.multi_label else ("val_top1", "validation accuracy")
    words = [*curves.best(facts.records, key, name), *curves.troubles(facts.records)]
    return charts(words, [plots[name] for name in CURVES if name in plots])


def confusion(facts: ClassificationFacts, plots: Mapping[str, Markup]) -> Markup | None:
    """The matrix beside the most frequent mistakes; only those where there are too many classes for a matrix."""
    if not facts.judged or facts.multi_label or len(facts.classes) < 2:
        return None
    drawn = tag("figure", plots["confusion"]) if "confusion" in plots else None
    counts = facts.metric.confusion
    pairs = confused_pairs(counts)
    title = tag("h2", "What is taken for what")
    if not pairs:
        return join(title, lead("Nothing is taken for anything else: no image was given a wrong class."), drawn)
    support, rows = counts.sum(1), []
    for true, named, images in pairs:
        names = (tag("td", facts.classes[index], class_="text") for index in (true, named))
        rows.append(tag("tr", *names, tag("td", f"{images:,}"), tag("td", percent(images / support[true]))))
    table = tag("table", header(("true", "taken for", "images", "of the class"), text=2), tag("tbody", *rows))
    wrong, shown = int(counts.sum() - np.trace(counts)), sum(images for *_, images in pairs)
    words = (
        f"The commonest {shown:,} of {plural(wrong, 'mistake')}:" if shown < wrong else f"{plural(wrong, 'mistake')}:"
    )
    listed = join(lead(words), make_scrollable(table, "Mistakes by pair of classes"))
    return join(title, tag("div", drawn, tag("div", listed), class_="beside") if drawn else listed)


def classes(facts: ClassificationFacts) -> Markup | None:
    """A row for each class, the weakest first."""
    if not facts.judged:
        return None
    shares, at = {}, ""
    scores = facts.metric.per_class()
    if facts.multi_label:
        shares["AP"] = facts.metric.average_precision
        at = f" Here a label counts as given from a probability of {percent(0.5, 0)} on."
    shares |= {"precision": scores.precision, "recall": scores.recall, "F1": scores.f1}
    counts = {f"{facts.split_name} images": scores.support}
    if "train" in facts.class_counts and facts.split != "train":
        counts["training images"] = np.asarray(facts.class_counts["train"])
    first = next(iter(shares)) if facts.multi_label else "F1"
    order = np.argsort(shares[first], kind="stable")  # what is undefined comes last
    columns = ("class", *shares, *counts)
    rows = (class_row(facts, index, shares, counts, barred=first) for index in order)
    dash = " A dash is undefined: no such image, or none given that name." if np.isnan([*shares.values()]).any() else ""
    means = "Precision: how often the name is right when it is given. Recall: how many of the class’s images get it."
    table = tag("table", header(columns, sorted_by=first), tag("tbody", *rows))
    words = lead(f"The weakest first; press a heading to sort. {means}{at}{dash}")
    return join(tag("h2", "Class by class"), words, make_scrollable(table, "Class by class"))


def class_row(
    facts: ClassificationFacts,
    index: int,
    shares: Mapping[str, np.ndarray],
    counts: Mapping[str, np.ndarray],
    *,
    barred: str,
) -> Markup:
    cells = [tag("th", facts.classes[index], scope="row", data_value=facts.classes[index])]
    for key, values in shares.items():
        value = float(values[index])
        known = math.isfinite(value)
        bar = {"class_": "bar", "style": f"--share:{value:.3f}"} if known and key == barred else {}
        cells.append(tag("td", percent(value), data_value=f"{value:.6f}" if known else "", **bar))
    cells += [tag("td", f"{values[index]:,}", data_value=values[index]) for values in counts.values()]
    return tag("tr", *cells)


def mistakes(facts: ClassificationFacts) -> Markup | None:
    """The images that the model is most sure and most wrong about."""
    if not facts.mistakes:
        return None
    with_attention = any(shown.attention is not None for shown in facts.mistakes)
    words = "The images it is most confidently wrong about. Some of them may be wrong in the data."
    attention = " Beside each, where the last layer looks: light is attention." if with_attention else ""
    items = (mistake(shown, multi_label=facts.multi_label) for shown in facts.mistakes)
    pictures = tag("ul", *items, class_="mistakes" if with_attention else "mistakes single")
    return join(tag("h2", "The worst mistakes"), lead(words, attention), pictures)


def mistake(shown: Mistake, *, multi_label: bool) -> Markup:
    """One picture, beside it where the model looked, and the two names."""
    panes = [photograph(shown.picture, f"An image of {shown.true}, taken for {shown.predicted}")]
    if shown.attention is not None:
        attention = overlay_attention(shown.picture, shown.attention, shown.reach)
        panes.append(tag("img", src=data_uri(attention), alt="The same image, light where the model looks"))
    true, predicted = tag("span", shown.true, class_="right"), tag("span", shown.predicted, class_="wrong")
    words = (true, " taken for ", predicted, f", {percent(shown.confidence)} sure")
    if multi_label:
        words = ("has ", true, ", named ", predicted)
    return tag("li", tag("div", *panes, class_="panes"), tag("p", *words), tag("p", shown.key, class_="key"))


def calibration(facts: ClassificationFacts, plots: Mapping[str, Markup]) -> Markup | None:
    """Whether a confidence can be taken at its word."""
    if "reliability" not in plots:
        return None
    bins = facts.metric.calibration
    error, lean = facts.figures.get("ece", bins.error), bins.lean
    kind = "about as sure as it is right"
    if abs(lean) > 0.005:
        kind = "too sure of itself" if lean > 0 else "less sure than it could be"
    pair = "the probability of a label and how often it is there" if facts.multi_label else "confidence and accuracy"
    words = [
        tag("p", f"On average, {pair} are ", tag("strong", percent(error)), f" apart; the model is {kind}."),
        lead(
            "Each bar is what came true at that confidence; on the dashed line the two agree. Red is where it promised "
            "more than came true, pale blue where more came true than it promised. Faded bars rest on fewer than five "
            f"answers. The distance is the expected calibration error over {len(bins.counts)} bins."
        ),
    ]
    if error >= 0.02 and not facts.multi_label:
        fits = " fits one temperature that narrows the gap and leaves every answer as it is."
        words.append(lead(tag("code", "vitrail evaluate --calibrate"), fits))
    both = tag("div", tag("figure", plots["reliability"]), tag("div", *words), class_="beside even")
    return join(tag("h2", "Can its confidence be trusted?"), both)


def run(facts: ClassificationFacts) -> Markup:
    """What to repeat to get the same, and what it was measured on."""
    named = listing([shorten(name, 40) for name in facts.classes])
    return components.run(facts, {"Classes": f"{len(facts.classes):,}: {named}"})


def confused_pairs(counts: np.ndarray, most: int = 12) -> list[tuple[int, int, int]]:
    """The most frequent mistakes as (true, predicted, images), the most frequent first."""
    wrong = counts - np.diag(np.diag(counts))
    rows, columns = np.nonzero(wrong)
    order = np.argsort(-wrong[rows, columns], kind="stable")[:most]
    return [(int(row), int(column), int(wrong[row, column])) for row, column in zip(rows[order], columns[order])]
