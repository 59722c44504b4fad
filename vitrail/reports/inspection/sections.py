"""The sections of an inspection, in reading order: each turns what was found into markup, or into None where there is nothing.

Each says in two sentences what its picture means and how to read it; then come the figures of this model.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from vitrail.analysis.cost import CostPoint, fit_growth
from vitrail.analysis.equivariance import Response
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
from vitrail.reports.html import Markup, data_uri, exact_uri, join, tag
from vitrail.reports.inspection import charts as charts
from vitrail.reports.inspection.facts import Filters, Finding, Inspection, Positions, Sample
from vitrail.reports.wording import decimal, large, percent, plural, sentence

MARKS = {True: ("✓", "true", "holds"), False: ("✗", "false", "fails"), None: ("–", "not asked", "open")}
METHODS = {"attention": "attention, last layer", "rollout": "attention rollout", "gradient": "gradient relevance"}
MOST_OF_VARIANCE = 0.9
MOST_TILES = 16  # positions down and across
ROUNDING = 1e-6  # features that move less have not moved


def headline(inspection: Inspection) -> Markup:
    """The model in words, and the paper's findings asked of it."""
    asked = [finding for finding in inspection.findings if finding.holds is not None]
    size = " × ".join(map(str, inspection.image_size)) + " pixels"
    patches = f" in patches of {inspection.patch_size[0]} × {inspection.patch_size[1]}" if inspection.patch_size else ""
    model = tag(
        "p",
        f"{sentence(inspection.model)} of ",
        tag("strong", f"{large(inspection.parameters)} parameters"),
        f", which sees images of {size}{patches} with {large(inspection.multiply_adds)} multiply-adds.",
    )
    looked = lead(f"Measured on {plural(inspection.images, 'image')}.") if inspection.images else None
    if not asked:
        words = tag("div", model, looked, class_="words")
        return join(tag("div", words, class_="headline bare"), findings(inspection.findings))
    value = f"{sum(bool(finding.holds) for finding in asked)} of {len(asked)}"
    name = "findings of the ViT paper hold for this model"
    if len(asked) < len(inspection.findings):
        name = "findings of the ViT paper that could be asked hold for this model"
    return join(show_figure(value, name, model, looked), findings(inspection.findings))


def findings(verdicts: Sequence[Finding]) -> Markup | None:
    """Each claim with its verdict, as a sign and as a word, and the figures that it rests on."""
    items = []
    for finding in verdicts:
        sign, word, kind = MARKS[finding.holds]
        verdict = tag("span", tag("span", sign, aria_hidden="true"), f" {word}", class_=f"verdict {kind}")
        items.append(tag("li", verdict, tag("div", tag("p", finding.claim, class_="claim"), lead(finding.words))))
    return tag("ul", *items, class_="findings", aria_label="Findings of the ViT paper") if items else None


def filters(layer: Filters, sheet: np.ndarray) -> Markup:
    """Figure 7, left."""
    # the shares come in fp32, whose sum is all but 1 where nothing is left out
    count, explained = len(layer.pictures), np.cumsum(layer.explained, dtype=np.float64).round(6)
    words = (
        f"Each tile is a direction in which the {layer.width:,} filters of the first layer differ, the one with most variance "
        "first; mid grey is zero. In a trained model they look like a basis for the fine structure within a patch, "
        "smooth waves and edges in few colours, and in an untrained one like noise (ViT paper, figure 7, left)."
    )
    if not count or not explained[-1]:
        words = "There is only one filter, or all are alike, so they do not differ."
        return join(tag("h2", "What the first layer looks for"), lead(words))
    reached = np.flatnonzero(explained >= MOST_OF_VARIANCE)
    share, most = percent(float(explained[count - 1])), percent(MOST_OF_VARIANCE, 0)
    enough = f"the first {reached[0] + 1} reach {most}."
    figures = [
        tag("p", f"The first {plural(count, 'principal component')} of {layer.width:,} filters explain ", tag("strong", share),
            f" of their variance; {enough}"),
        tag("p", f"The first one alone explains {percent(float(layer.explained[0]))}."),
    ]  # fmt: skip
    alt = f"{plural(count, 'principal component')} of the filters of the first layer"
    return section("What the first layer looks for", words, tag("figure", pixels(sheet, alt)), figures)


def every_tile(similarity: np.ndarray) -> int:
    """Of how many rows and columns of positions (h, w, h, w) one is shown, so that a tile can be read."""
    return math.ceil(max(similarity.shape[:2]) / MOST_TILES)


def positions(embeddings: Positions, picture: np.ndarray) -> Markup:
    """Figure 7, centre."""
    rows, columns = embeddings.similarity.shape[:2]
    words = (
        "The tile in row r and column c shows how similar the position embedding of that patch is to those of all patches, "
        "each at its place; the brightest cell is the patch itself. Light that falls off around it says that the model has "
        "learned which patches are near, bright crosses that it has learned rows and columns (ViT paper, figure 7, centre)."
    )
    lines = embeddings.lines
    figures = [
        tag("p", "For ", tag("strong", percent(embeddings.neighbour_rate)), " of the patches the most similar other position is "
            f"one of the four beside it, for {percent(embeddings.neighbour_rate_with_corners)} one of the eight around it."),
        facts({
            "in the same row": decimal(lines.row, 2),
            "in the same column": decimal(lines.column, 2),
            "elsewhere": decimal(lines.elsewhere, 2),
        }),
        lead("The mean cosine of two positions that are equally far apart."),
    ]  # fmt: skip
    if (every := every_tile(embeddings.similarity)) > 1:
        figures.append(lead(f"Of every {every} rows and columns of the {rows} × {columns} tiles one is shown."))
    alt = f"Similarity of the position embeddings of {rows} by {columns} patches"
    drawn = tag("figure", pixels(picture, alt), charts.scale(-1, 1, "cosine similarity"))
    return section("Which positions are alike", words, drawn, figures)


def samples(inspection: Inspection) -> Markup | None:
    """Pictures beside what counted in them, by each method."""
    if not inspection.samples:
        return None
    words = (
        "Light is where the attention of the last layer goes, where it goes through all layers (rollout), and where attention "
        "counts for the class that is named (gradient). Such maps say where information was taken from, not why, and not "
        "that the light was needed: networks also keep notes in patches that show nothing, so light on a corner or an even "
        "background often is a store and no evidence (“Vision Transformers Need Registers”, Darcet et al., 2024)."
    )
    own = "Each map has its own scale of light, so that one hardly above its mean looks as bright as one with a high peak."
    items = tag("ul", *(sample(image) for image in inspection.samples), class_="samples")
    return join(tag("h2", "What counted in these images"), lead(words), items, tag("p", own, class_="lead after"))


def sample(image: Sample) -> Markup:
    """One image, the maps laid on it, and what the model takes it for."""
    panes = [pane(photograph(image.picture, f"An image that the model takes for {image.label}"), "what the model sees")]
    for name, attention in image.maps.items():
        about = METHODS.get(name, name)
        overlay = tag(
            "img",
            src=data_uri(overlay_attention(image.picture, attention, image.reach_of(name))),
            alt=f"The same image, light by {about}",
        )
        panes.append(pane(overlay, f"{about}: {steepness(attention)}"))
    named = tag("p", tag("span", image.label, class_="right"), f", {percent(image.score)}")
    return tag("li", tag("div", *panes, class_="panes"), named, tag("p", image.key, class_="key"))


def steepness(attention: np.ndarray) -> str:
    """How far the strongest patch stands out: light alone cannot say it, as every map has its own scale."""
    mean = float(attention.mean())
    return f"peak\u00a0{float(attention.max()) / mean:.1f}\u00a0×\u00a0its\u00a0mean" if mean > 0 else "zero everywhere"


def biases(inspection: Inspection, plots: Mapping[str, Markup]) -> Markup | None:
    """What CNNs have by construction: movement with the image, locality, and two dimensions."""
    if (measured := inspection.biases) is None:
        return None
    words = (
        "A convolution has three things by construction that a ViT has to learn: its features move with the image, each looks at "
        "what is near, and it knows that pixels lie in two dimensions (ViT paper, section 3.1). "
        f"The charts say how far this model has them, on {plural(measured.images, 'image')}: the lower the first stays under "
        "its dashed line, the nearer the second comes to 1 and the lower the third stays, the more it is like a convolution."
    )
    captions = {
        "shifts": "One minus the cosine of the pooled features before and after the image moves diagonally; a shift by whole "
        f"patches leaves what is in them, a smaller one cuts them anew. {other_answers(measured.shifts)}",
        "equivariance": "1 is a feature map that moves exactly as the image does, 0 one that is unlike the map it was before. "
        f"The image moves by one cell of the map. {describe_ends([response.concordance for response in measured.maps], 2)}",
        "locality": "The mean distance of the pixels that the middle cell of each map depends on, weighted by the squared "
        f"gradient (effective receptive field). {describe_ends([locality.distance for locality in measured.locality], 1, ' px')}",
    }
    drawn = [tag("figure", plots[name], tag("figcaption", caption)) for name, caption in captions.items()]
    drawn.append(
        tag("div", tag("h3", "The patches in another order"), *explain_permutation(inspection), class_="aside")
    )
    return join(tag("h2", "What convolutions have by construction"), lead(words), tag("div", *drawn, class_="charts"))


def other_answers(shifts: Mapping[int, Response]) -> str:
    """The shift that changes most answers, and how many."""
    known = [(response.changed, shift) for shift, response in shifts.items() if response.changed is not None]
    if not known:
        return ""
    share, shift = max(known)
    if not share:
        return "No answer changes."
    return f"Most answers change at {plural(shift, 'pixel')}: those for {percent(share)} of the images."


def describe_ends(values: Sequence[float | None], digits: int, unit: str = "") -> str:
    """The first and the last figure that is known."""
    known = [
        f"{decimal(value, digits)}{unit} for map {number}" for number, value in enumerate(values) if value is not None
    ]
    if not known:
        return "No map has such a figure."
    return f"It is {known[0]}." if len(known) == 1 else f"It is {known[0]} and {known[-1]}."


def explain_permutation(inspection: Inspection) -> list[Markup]:
    """What the model makes of patches that changed places."""
    assert inspection.biases is not None
    pixels, unplaced = inspection.biases.permutation
    apart = "" if pixels.apart is None else f"; two different images are {decimal(pixels.apart, 2)} apart"
    changed = (
        ""
        if pixels.changed is None
        else f" The answer becomes another one for {percent(pixels.changed, 0)} of the images."
    )
    sentences = [
        tag("p", "With the patches of every image cut out and put together in another order, the features move by ",
            tag("strong", decimal(pixels.moved, 2)), f"{apart}.{changed}"),
    ]  # fmt: skip
    if unplaced is None:
        sentences.append(
            tag("p", "Without positions it cannot be asked: the blocks of this architecture know the grid themselves.")
        )
    elif unplaced.moved < ROUNDING:
        sentences.append(
            tag("p", "Without positions it does not notice: the features move by rounding alone "
                f"({unplaced.moved:.0e}). All that it knows of two dimensions is in its position embeddings.")
        )  # fmt: skip
    else:
        sentences.append(
            tag(
                "p",
                f"Without positions they move by {decimal(unplaced.moved, 2)}: its blocks know places too.",
            )
        )
    return sentences


def cost(inspection: Inspection, plots: Mapping[str, Markup]) -> Markup | None:
    """Time and memory against tokens."""
    if not inspection.cost:
        return None
    words = (
        "Tokens grow with the area of an image, and attention with their square; on these axes, both logarithmic, a power of the "
        "tokens is a straight line, and its steepness is the power. The second line is the same model with every attention "
        "matrix made and held, which fused attention never does."
    )
    drawn = tag("div", *(tag("figure", plots[name]) for name in ("cost-time", "cost-memory")), class_="charts")
    powers = {name: fit_growth(inspection.cost, name) for name in ("seconds", "plain_seconds", "bytes", "plain_bytes")}
    fitted = None
    if all(math.isfinite(power) for power in powers.values()):
        time, plain_time, memory, plain_memory = (f"{power:.2f}" for power in powers.values())
        fitted = tag(
            "p", f"Fitted to these points, time grows with the tokens to the power {time} as it runs and {plain_time} with whole "
            f"matrices, memory to the power {memory} and {plain_memory}."
        )  # fmt: skip
    tables = [cost_table("image", [(point.size, point) for point in inspection.cost])]
    if inspection.cost_by_patch:
        image = " × ".join(map(str, inspection.cost_by_patch[0].size))
        tables.append(tag("p", f"And at {image} pixels, models that differ in nothing but the size of their patches:"))
        tables.append(cost_table("patch", [(point.patch_size, point) for point in inspection.cost_by_patch]))
    return join(tag("h2", "What more tokens cost"), lead(words), drawn, fitted, *tables)


def cost_table(what: str, points: Sequence[tuple[tuple[int, int], CostPoint]]) -> Markup:
    """A row for each size in pixels of what is varied."""
    rows = []
    for size, point in points:
        figures = (point.seconds, point.plain_seconds), (point.bytes, point.plain_bytes)
        cells = [f"{point.tokens:,}", large(point.multiply_adds)]
        cells += ["–" if value is None else spell_time(value) for value in figures[0]]
        cells += ["–" if value is None else large(value, "B") for value in figures[1]]
        named = tag("th", " × ".join(map(str, size)), scope="row")
        rows.append(tag("tr", named, *(tag("td", value) for value in cells)))
    columns = (what, "tokens", "multiply-adds", "time", "time with matrices", "memory", "memory with matrices")
    return make_scrollable(tag("table", header(columns), tag("tbody", *rows)), f"Cost by size of {what}")


def spell_time(seconds: float) -> str:
    return f"{seconds * 1000:,.3g} ms" if seconds < 1 else f"{seconds:,.3g} s"


def run(inspection: Inspection) -> Markup:
    """What to repeat to get the same, and what it was measured on."""
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
    """A heading and its sentences, then the picture beside this model's figures."""
    both = tag("div", drawn, tag("div", *figures), class_="beside picture")
    return join(tag("h2", title), lead(words), both)


def pixels(picture: np.ndarray, alt: str) -> Markup:
    """A picture with hard edges on its own pale ground, as large as there is room."""
    return tag("img", src=exact_uri(picture), alt=alt, class_="ground")


def facts(rows: Mapping[str, str]) -> Markup:
    """A short list of figures, one below the other."""
    return tag("dl", *(join(tag("dt", name), tag("dd", value)) for name, value in rows.items()), class_="figures")
