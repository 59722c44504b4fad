"""The sections of the classification report, in reading order. Each function returns None if its data are missing."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from vitrail.markup import Markup, join, tag
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
    warn_of_few,
)
from vitrail.reports.confusion import confusion as confusion_section
from vitrail.reports.facts import ClassificationFacts, Mistake
from vitrail.reports.html import data_uri
from vitrail.reports.metric_names import METRICS
from vitrail.text import decimal, listing, percent, plural, shorten

CURVES = ("loss", "accuracy", "average-precision", "learning-rate", "speed")
MISCALIBRATED = 0.15  # expected calibration error
OTHERS = ("top5", "f1_macro", "f1_micro", "nll", "ece", "brier")


def headline(facts: ClassificationFacts) -> Markup:
    """Returns the main metric with its confidence interval and an explanation, followed by the other metrics."""
    key = "map" if facts.multi_label else "top1"
    value, low, high = (facts.figures.get(name, math.nan) for name in (key, f"{key}_low", f"{key}_high"))
    if not math.isfinite(value):
        return tag("div", explain_unjudged(facts), class_="headline bare")
    words = [explanation(facts)]
    if math.isfinite(low) and math.isfinite(high):
        ends = f"{percent(low)} to {percent(high)}"
        strip = draw.interval_strip(value, low, high, commonest_share(facts))
        words += [
            lead(f"95 % confidence interval for images of the same distribution: {ends}."),
            tag("div", strip, class_="strip"),
        ]
    return join(show_figure(percent(value), METRICS[key].label, *words), list_figures(other_figures(facts)))


def warnings(facts: ClassificationFacts) -> list[str]:
    """Returns sentences about results that should not be relied on: few images, or probabilities that are far off."""
    words = warn_of_few(len(facts.metric.keys)) if facts.judged else []
    if (error := facts.figures.get("ece", math.nan)) >= MISCALIBRATED:
        words.append(
            f"The expected calibration error is {percent(error, 0)}. Do not use the confidences as probabilities before "
            "fitting a temperature with `vitrail evaluate --calibrate`."
        )
    return words


def explain_unjudged(facts: ClassificationFacts) -> Markup:
    """Returns the paragraph shown if no metric was measured."""
    losses = [record["loss"] for record in facts.records if "loss" in record]
    last = f" The final training loss is {decimal(float(losses[-1]), 4)}." if losses else None
    return tag("p", "No labelled images were held out, so the accuracy on new images is unknown.", last)


def explanation(facts: ClassificationFacts) -> Markup:
    """Returns a paragraph that explains the main metric."""
    where = f"{facts.split_name} image"
    if not facts.judged:
        return tag("p", f"Measured on the {where}s.")
    count, of = len(facts.metric.keys), plural(len(facts.classes), "class", "classes")
    if facts.multi_label:
        means = f"Images are ranked by probability for each label; {percent(1)} ranks all images with the label first."
        return tag("p", f"Measured on {plural(count, where)} with {of}. {means}")
    right = int(np.trace(facts.metric.confusion))
    wrong = "none incorrectly."
    if right < count:
        odds = count / (count - right)
        wrong = f"{count - right:,} incorrectly (1 in {odds:.{0 if odds >= 10 else 1}f})."
    warning = (
        " The model was trained on these images; expect lower accuracy on new ones." if facts.split == "train" else ""
    )
    names = f"Of {plural(count, where)} in {of}, the model classifies "
    return tag("p", names, tag("strong", f"{right:,} correctly"), f" and {wrong}{warning}")


def commonest_share(facts: ClassificationFacts) -> float | None:
    """Returns the accuracy of always predicting the most frequent class."""
    if facts.multi_label or not facts.judged:
        return None
    return float(np.bincount(facts.metric.targets).max() / len(facts.metric.keys))


def other_figures(facts: ClassificationFacts) -> list[tuple[str, str, str]]:
    """Returns the other metrics as (name, value, description); top-5 only with more than five classes."""
    rows = []
    for key in OTHERS:
        if key in facts.figures and not (key == "top5" and len(facts.classes) <= 5):
            metric = METRICS[key]
            rows.append((metric.heading, metric.format(facts.figures[key]), metric.gloss))
    return rows


def training_curves(facts: ClassificationFacts, plots: Mapping[str, Markup]) -> Markup | None:
    """Returns the charts against the training step."""
    key, name = ("val_map", METRICS["map"].label) if facts.multi_label else ("val_top1", "validation accuracy")
    words = [*curves.best(facts.records, key, name), *curves.troubles(facts.records)]
    return charts(words, [plots[name] for name in CURVES if name in plots])


def confusion(facts: ClassificationFacts, plots: Mapping[str, Markup]) -> Markup | None:
    """Returns the confusion matrix beside the most frequent confusions; only the latter if there are too many classes."""
    if not facts.judged or facts.multi_label or len(facts.classes) < 2:
        return None
    return confusion_section(facts.metric.confusion, facts.classes, plots.get("confusion"))


def classes(facts: ClassificationFacts) -> Markup | None:
    """Returns the table of per-class metrics, the worst class first."""
    if not facts.judged:
        return None
    shares, at = {}, ""
    scores = facts.metric.per_class()
    if facts.multi_label:
        shares["AP"] = facts.metric.average_precision
        at = f" A label is predicted if its probability is at least {percent(0.5, 0)}."
    shares |= {"precision": scores.precision, "recall": scores.recall, "F1": scores.f1}
    counts = {f"{facts.split_name} images": scores.support}
    if "train" in facts.class_counts and facts.split != "train":
        counts["training images"] = np.asarray(facts.class_counts["train"])
    first = next(iter(shares)) if facts.multi_label else "F1"
    order = np.argsort(shares[first], kind="stable")  # NaN last
    columns = ("class", *shares, *counts)
    rows = (class_row(facts, index, shares, counts, barred=first) for index in order)
    dash = (
        " A dash is an undefined value: no such images, or no such predictions."
        if np.isnan([*shares.values()]).any()
        else ""
    )
    means = (
        "Precision: share of the predictions of a class that are correct. Recall: share of its images predicted as it."
    )
    table = tag("table", header(columns, sorted_by=first), tag("tbody", *rows))
    words = lead(f"Sorted from worst to best; click a heading to sort. {means}{at}{dash}")
    return join(tag("h2", "Per-class metrics"), words, make_scrollable(table, "Per-class metrics"))


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
    """Returns the misclassified images with the highest confidence."""
    if not facts.mistakes:
        return None
    with_attention = any(shown.attention is not None for shown in facts.mistakes)
    words = "The misclassified images with the highest confidence. Some of them may be labelled incorrectly."
    attention = (
        " Beside each image is the attention map of the last layer; brighter means more attention."
        if with_attention
        else ""
    )
    items = (mistake(shown, multi_label=facts.multi_label) for shown in facts.mistakes)
    pictures = tag("ul", *items, class_="mistakes" if with_attention else "mistakes single")
    return join(tag("h2", "Most confident mistakes"), lead(words, attention), pictures)


def mistake(shown: Mistake, *, multi_label: bool) -> Markup:
    """Returns one image, its attention map, and the true and the predicted class."""
    panes = [photograph(shown.picture, f"An image of {shown.true}, predicted as {shown.predicted}")]
    if shown.attention is not None:
        attention = overlay_attention(shown.picture, shown.attention, shown.reach)
        panes.append(tag("img", src=data_uri(attention), alt="The same image with its attention map"))
    true, predicted = tag("span", shown.true, class_="right"), tag("span", shown.predicted, class_="wrong")
    words = (true, " predicted as ", predicted, f", confidence {percent(shown.confidence)}")
    if multi_label:
        words = ("true: ", true, "; predicted: ", predicted)
    return tag("li", tag("div", *panes, class_="panes"), tag("p", *words), tag("p", shown.key, class_="key"))


def calibration(facts: ClassificationFacts, plots: Mapping[str, Markup]) -> Markup | None:
    """Returns the reliability diagram with the expected calibration error and its explanation."""
    if "reliability" not in plots:
        return None
    bins = facts.metric.calibration
    error, lean = facts.figures.get("ece", bins.error), bins.lean
    kind = "neither over- nor underconfident overall"
    if abs(lean) > 0.005:
        kind = "overconfident" if lean > 0 else "underconfident"
    pair = "label probability and label frequency" if facts.multi_label else "confidence and accuracy"
    words = [
        tag("p", f"On average, {pair} differ by ", tag("strong", percent(error)), f"; the model is {kind}."),
        lead(
            "Each bar shows the accuracy of the predictions in one confidence bin; a perfectly calibrated model follows the "
            "dashed line. Red marks overconfidence, pale blue underconfidence. Faded bars have fewer than five "
            f"predictions. The expected calibration error is computed over {len(bins.counts)} bins."
        ),
    ]
    if error >= 0.02 and not facts.multi_label:
        fits = " fits a temperature that reduces the calibration error without changing the predicted classes."
        words.append(lead(tag("code", "vitrail evaluate --calibrate"), fits))
    both = tag("div", tag("figure", plots["reliability"]), tag("div", *words), class_="beside even")
    return join(tag("h2", "Calibration"), both)


def run(facts: ClassificationFacts) -> Markup:
    """Returns the run details: command, settings and environment."""
    named = listing([shorten(name, 40) for name in facts.classes])
    return components.run(facts, {"Classes": f"{len(facts.classes):,}: {named}"})
