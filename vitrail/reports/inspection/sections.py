"""The sections of an inspection report, in reading order. Each function returns None if its data are missing.

Each section explains its figure and then gives the values of the model.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from vitrail.analysis.cost import CostPoint, fit_growth
from vitrail.analysis.equivariance import Response
from vitrail.markup import Markup, join, tag
from vitrail.reports.components import (
    describe_model,
    describe_run,
    header,
    lead,
    list_versions,
    make_scrollable,
    overlay_attention,
    pane,
    photograph,
    show_figure,
)
from vitrail.reports.html import data_uri, exact_uri
from vitrail.reports.inspection import charts as charts
from vitrail.reports.inspection.facts import Filters, Finding, Inspection, Positions, Sample
from vitrail.text import decimal, large, percent, plural, sentence

MARKS = {True: ("✓", "true", "holds"), False: ("✗", "false", "fails"), None: ("–", "not tested", "open")}
METHODS = {"attention": "attention, last layer", "rollout": "attention rollout", "gradient": "gradient relevance"}
MOST_OF_VARIANCE = 0.9
MOST_TILES = 16  # tiles per side of the position mosaic
ROUNDING = 1e-6  # smaller changes of features are rounding errors


def headline(inspection: Inspection) -> Markup:
    """Returns a description of the model and the results of testing the findings of the paper."""
    tested = [finding for finding in inspection.findings if finding.holds is not None]
    size = " × ".join(map(str, inspection.image_size)) + " pixels"
    patches = f" in patches of {inspection.patch_size[0]} × {inspection.patch_size[1]}" if inspection.patch_size else ""
    model = tag(
        "p",
        f"{sentence(inspection.model)} with ",
        tag("strong", f"{large(inspection.parameters)} parameters"),
        f", for images of {size}{patches}; {large(inspection.multiply_adds)} multiply-adds per image.",
    )
    measured = lead(f"Measured on {plural(inspection.images, 'image')}.") if inspection.images else None
    if not tested:
        words = tag("div", model, measured, class_="words")
        return join(tag("div", words, class_="headline bare"), findings(inspection.findings))
    value = f"{sum(bool(finding.holds) for finding in tested)} of {len(tested)}"
    name = "findings of the ViT paper hold for this model"
    if len(tested) < len(inspection.findings):
        name = "testable findings of the ViT paper hold for this model"
    return join(show_figure(value, name, model, measured), findings(inspection.findings))


def findings(verdicts: Sequence[Finding]) -> Markup | None:
    """Returns the list of findings, each with its verdict and the measured values."""
    items = [
        tag("li", verdict(finding), tag("div", tag("p", finding.claim, class_="claim"), lead(finding.words)))
        for finding in verdicts
    ]
    return tag("ul", *items, class_="findings", aria_label="Findings of the ViT paper") if items else None


def verdict(finding: Finding) -> Markup:
    """Returns the sign and the word of a finding."""
    sign, word, kind = MARKS[finding.holds]
    return tag("span", tag("span", sign, aria_hidden="true"), f" {word}", class_=f"verdict {kind}")


def filters(layer: Filters, sheet: np.ndarray) -> Markup:
    """Returns the section of first-layer filters (figure 7, left)."""
    # rounding: the fp32 ratios of all components do not sum to exactly 1
    count, explained = len(layer.pictures), np.cumsum(layer.explained, dtype=np.float64).round(6)
    words = (
        f"The tiles are the principal components of the {layer.width:,} filters of the first layer, in descending order of "
        "variance; mid grey is zero. In a trained model they resemble a basis for the fine structure within a patch, "
        "smooth waves and edges in few colours; in an untrained model they resemble noise (ViT paper, figure 7, left)."
    )
    if not count or not explained[-1]:
        words = "There is only one filter, or all filters are equal."
        return join(tag("h2", "First-layer filters"), lead(words))
    reached = np.flatnonzero(explained >= MOST_OF_VARIANCE)
    share, most = percent(float(explained[count - 1])), percent(MOST_OF_VARIANCE, 0)
    enough = f"{most} is reached with {plural(int(reached[0]) + 1, 'component')}."
    figures = [
        tag("p", f"The first {plural(count, 'principal component')} of {layer.width:,} filters explain ", tag("strong", share),
            f" of their variance; {enough}"),
        tag("p", f"The first component explains {percent(float(layer.explained[0]))}."),
    ]  # fmt: skip
    alt = f"{plural(count, 'principal component')} of the filters of the first layer"
    return section("First-layer filters", words, tag("figure", pixels(sheet, alt)), figures)


def every_tile(similarity: np.ndarray) -> int:
    """Returns the step between the rows and columns of positions (h, w, h, w) that are shown, so that tiles stay legible."""
    return math.ceil(max(similarity.shape[:2]) / MOST_TILES)


def positions(embeddings: Positions, picture: np.ndarray) -> Markup:
    """Returns the section of position embedding similarities (figure 7, centre)."""
    rows, columns = embeddings.similarity.shape[:2]
    words = (
        "The tile in row r and column c shows the cosine similarity of the position embedding of that patch with those of all "
        "patches; the brightest cell is the patch itself. Similarity that decreases with distance shows that the model has "
        "learned which patches are close, bright crosses that it has learned rows and columns (ViT paper, figure 7, centre)."
    )
    lines = embeddings.lines
    figures = [
        tag("p", "For ", tag("strong", percent(embeddings.neighbour_rate)), " of the patches the most similar other position is "
            f"one of the 4 adjacent ones, for {percent(embeddings.neighbour_rate_with_corners)} one of the 8 around it."),
        facts({
            "in the same row": decimal(lines.row, 2),
            "in the same column": decimal(lines.column, 2),
            "elsewhere": decimal(lines.elsewhere, 2),
        }),
        lead("Mean cosine similarity of pairs of positions at the same distances."),
    ]  # fmt: skip
    if (every := every_tile(embeddings.similarity)) > 1:
        figures.append(
            lead(f"Tiles are shown for one in {every} rows and columns of the {rows} × {columns} positions.")
        )
    alt = f"Similarity of the position embeddings of {rows} by {columns} patches"
    drawn = tag("figure", pixels(picture, alt), charts.scale(-1, 1, "cosine similarity"))
    return section("Position embedding similarity", words, drawn, figures)


def samples(inspection: Inspection) -> Markup | None:
    """Returns the section of sample images with their attribution maps."""
    if not inspection.samples:
        return None
    words = (
        "The maps show the attention of the last layer, the attention accumulated through all layers (rollout), and the "
        "attention that contributes to the predicted class (gradient); brighter means more. They show where information is "
        "read, not why or whether it was needed: models also store global information in uninformative patches, so bright "
        "corners or uniform backgrounds are often artefacts (“Vision Transformers Need Registers”, Darcet et al., 2024)."
    )
    own = "Each map has its own brightness scale, so a nearly uniform map looks as bright as a map with a high peak."
    items = tag("ul", *(sample(image) for image in inspection.samples), class_="samples")
    return join(tag("h2", "Attention maps"), lead(words), items, tag("p", own, class_="lead after"))


def sample(image: Sample) -> Markup:
    """Returns one image, its overlaid maps and its predicted class."""
    panes = [pane(photograph(image.picture, f"An image predicted as {image.label}"), "model input")]
    for name, attention in image.maps.items():
        about = METHODS.get(name, name)
        overlay = tag(
            "img",
            src=data_uri(overlay_attention(image.picture, attention, image.reach_of(name))),
            alt=f"The same image with its map: {about}",
        )
        panes.append(pane(overlay, f"{about}: {steepness(attention)}"))
    named = tag("p", tag("span", image.label, class_="right"), f", {percent(image.score)}")
    return tag("li", tag("div", *panes, class_="panes"), named, tag("p", image.key, class_="key"))


def steepness(attention: np.ndarray) -> str:
    """Returns the ratio of peak and mean, which the overlay does not show as each map has its own scale."""
    mean = float(attention.mean())
    return f"peak\u00a0{float(attention.max()) / mean:.1f}\u00a0×\u00a0its\u00a0mean" if mean > 0 else "zero everywhere"


def biases(inspection: Inspection, plots: Mapping[str, Markup]) -> Markup | None:
    """Returns the section of inductive biases: translation equivariance, locality and two-dimensional structure."""
    if (measured := inspection.biases) is None:
        return None
    words = (
        "Convolutions have three built-in properties that a ViT must learn: translation equivariance, locality, and the "
        "two-dimensional neighbourhood structure of images (ViT paper, section 3.1). "
        f"The charts measure them on {plural(measured.images, 'image')}. A convolution-like model has low values relative to "
        "the dashed line in the first chart, values near 1 in the second, and low values in the third."
    )
    captions = {
        "shifts": "One minus the cosine similarity of the pooled features before and after a diagonal shift of the image; a "
        f"shift by whole patches preserves their content, a smaller one does not. {other_answers(measured.shifts)}",
        "equivariance": "1 is a feature map that moves exactly with the image, 0 a feature map unrelated to the original one. "
        f"The image is shifted by one cell. {describe_ends([response.concordance for response in measured.maps], 2)}",
        "locality": "The mean distance of the pixels that the central cell of each map depends on, weighted by the squared "
        f"gradient (effective receptive field). {describe_ends([locality.distance for locality in measured.locality], 1, ' px')}",
    }
    drawn = [tag("figure", plots[name], tag("figcaption", caption)) for name, caption in captions.items()]
    drawn.append(tag("div", tag("h3", "Permuted patches"), *explain_permutation(inspection), class_="aside"))
    return join(tag("h2", "Inductive biases"), lead(words), tag("div", *drawn, class_="charts"))


def other_answers(shifts: Mapping[int, Response]) -> str:
    """Returns a sentence about the shift that changes most predictions."""
    known = [(response.changed, shift) for shift, response in shifts.items() if response.changed is not None]
    if not known:
        return ""
    share, shift = max(known)
    if not share:
        return "No prediction changes."
    return f"A shift by {plural(shift, 'pixel')} changes most predictions: {percent(share)} of the images."


def describe_ends(values: Sequence[float | None], digits: int, unit: str = "") -> str:
    """Returns a sentence with the first and the last known value."""
    known = [
        f"{decimal(value, digits)}{unit} for map {number}" for number, value in enumerate(values) if value is not None
    ]
    if not known:
        return "Undefined for all maps."
    return f"The value is {known[0]}." if len(known) == 1 else f"The value is {known[0]} and {known[-1]}."


def explain_permutation(inspection: Inspection) -> list[Markup]:
    """Returns sentences about the response to permuted patches."""
    assert inspection.biases is not None
    pixels, unplaced = inspection.biases.permutation
    apart = "" if pixels.apart is None else f" (between different images: {decimal(pixels.apart, 2)})"
    changed = (
        "" if pixels.changed is None else f" The prediction changes for {percent(pixels.changed, 0)} of the images."
    )
    sentences = [
        tag("p", "If the patches of each image are permuted, the features change by ",
            tag("strong", decimal(pixels.moved, 2)), f"{apart}.{changed}"),
    ]  # fmt: skip
    if unplaced is None:
        sentences.append(
            tag(
                "p",
                "Without position embeddings this was not tested: the blocks of this architecture depend on the patch grid.",
            )
        )
    elif unplaced.moved < ROUNDING:
        sentences.append(
            tag("p", "Without position embeddings the features change only by rounding errors "
                f"({unplaced.moved:.0e}): all two-dimensional information is in the position embeddings.")
        )  # fmt: skip
    else:
        sentences.append(
            tag(
                "p",
                f"Without position embeddings they change by {decimal(unplaced.moved, 2)}: the blocks also encode positions.",
            )
        )
    return sentences


def cost(inspection: Inspection, plots: Mapping[str, Markup]) -> Markup | None:
    """Returns the section of time and memory against tokens."""
    if not inspection.cost:
        return None
    words = (
        "The number of tokens grows with the image area, and the cost of attention with its square. On logarithmic axes, a "
        "power law is a straight line whose slope is the exponent. The second line is the same model with all attention "
        "matrices computed and kept in memory, which fused attention avoids."
    )
    drawn = tag("div", *(tag("figure", plots[name]) for name in ("cost-time", "cost-memory")), class_="charts")
    powers = {name: fit_growth(inspection.cost, name) for name in ("seconds", "plain_seconds", "bytes", "plain_bytes")}
    fitted = None
    if all(math.isfinite(power) for power in powers.values()):
        time, plain_time, memory, plain_memory = (f"{power:.2f}" for power in powers.values())
        fitted = tag(
            "p", f"Fitted exponents of the number of tokens: time {time}, with full attention matrices {plain_time}; "
            f"memory {memory}, with full attention matrices {plain_memory}."
        )  # fmt: skip
    tables = [cost_table("image", [(point.size, point) for point in inspection.cost])]
    if inspection.cost_by_patch:
        image = " × ".join(map(str, inspection.cost_by_patch[0].size))
        tables.append(tag("p", f"Models that differ only in patch size, at {image} pixels:"))
        tables.append(cost_table("patch", [(point.patch_size, point) for point in inspection.cost_by_patch]))
    return join(tag("h2", "Computational cost"), lead(words), drawn, fitted, *tables)


def cost_table(what: str, points: Sequence[tuple[tuple[int, int], CostPoint]]) -> Markup:
    """Returns a table with a row for each image or patch size."""
    rows = []
    for size, point in points:
        figures = (point.seconds, point.plain_seconds), (point.bytes, point.plain_bytes)
        cells = [f"{point.tokens:,}", large(point.multiply_adds)]
        cells += ["–" if value is None else spell_time(value) for value in figures[0]]
        cells += ["–" if value is None else large(value, "B") for value in figures[1]]
        named = tag("th", " × ".join(map(str, size)), scope="row")
        rows.append(tag("tr", named, *(tag("td", value) for value in cells)))
    columns = (what, "tokens", "multiply-adds", "time", "time, full matrices", "memory", "memory, full matrices")
    return make_scrollable(tag("table", header(columns), tag("tbody", *rows)), f"Cost by {what} size")


def spell_time(seconds: float) -> str:
    return f"{seconds * 1000:,.3g} ms" if seconds < 1 else f"{seconds:,.3g} s"


def run(inspection: Inspection) -> Markup:
    """Returns the run details: command, data and environment."""
    counts = [plural(inspection.images, "image") + " for the heads"] if inspection.heads else []
    counts += [f"{inspection.biases.images:,} for the inductive biases"] if inspection.biases else []
    counts += [f"{len(inspection.samples):,} shown"] if inspection.samples else []
    rows = {
        "Model": describe_model(
            inspection.model, inspection.parameters, inspection.multiply_adds, inspection.image_size
        ),
        "Data": inspection.data,
        "Images": ", ".join(counts),
        "Machine": inspection.machine,
        "Versions": list_versions(inspection.versions),
    }
    return describe_run(inspection.command, rows)


def section(title: str, words: str, drawn: Markup, figures: Sequence[Markup]) -> Markup:
    """Returns a heading and its explanation, then the figure beside the measured values."""
    both = tag("div", drawn, tag("div", *figures), class_="beside picture")
    return join(tag("h2", title), lead(words), both)


def pixels(picture: np.ndarray, alt: str) -> Markup:
    """Returns an image element for pixel graphics, scaled without smoothing."""
    return tag("img", src=exact_uri(picture), alt=alt, class_="ground")


def facts(rows: Mapping[str, str]) -> Markup:
    """Returns a list of named values."""
    return tag("dl", *(join(tag("dt", name), tag("dd", value)) for name, value in rows.items()), class_="figures")
