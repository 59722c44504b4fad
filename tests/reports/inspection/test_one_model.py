"""The page of an inspection: one safe file, with a section for whatever was found and none for what was not."""

from __future__ import annotations

import base64
import io
import re
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
import torch
from PIL import Image

from tests.reports.reading import PAYLOAD, Page
from vitrail.analysis.components import Components
from vitrail.analysis.cost import CostPoint
from vitrail.analysis.embeddings import LineSimilarity
from vitrail.analysis.equivariance import MapEquivariance, PermutationResponse, Response
from vitrail.analysis.head_statistics import HeadFigures
from vitrail.analysis.locality import Locality
from vitrail.analysis.tokens import MapNorms, Neuron
from vitrail.errors import DiskError
from vitrail.reports.charts import heat_map
from vitrail.reports.inspection import charts as charts
from vitrail.reports.inspection.facts import Biases, Filters, Finding, Inspection, Painted, Positions, Sample, Tokens
from vitrail.reports.inspection.one_model import write_inspection

EVERY = ["filters", "positions", "distance", "entropy", "norms", "components", "samples", "biases", "cost"]
EVERY += ["run-details"]


def layer(*distances: float, uniform: float = 20.0, prefix: float = 0.25) -> HeadFigures:
    """A layer of attention whose heads look so far; without a distance none of its places ask."""
    far = torch.tensor(distances or (torch.nan,) * 2)
    asks = far * 0 + 1
    return HeadFigures(
        distance=far, uniform=uniform if distances else torch.nan, entropy=asks * 0.5, prefix=asks * prefix
    )


def biases(unplaced: Response | None = Response(1e-12, 0.5, 0.0)) -> Biases:
    return Biases(
        images=4,
        shifts={shift: Response(shift / 100, 0.6, shift / 10) for shift in (1, 2, 4)},
        maps=[MapEquivariance((4, 4), 1, 0.875), MapEquivariance((8, 8), 0, None)],
        locality=[Locality((4, 4), 3.5, 3.0, 12.0), Locality((8, 8), None, None, 12.5)],
        permutation=PermutationResponse(Response(0.25, 0.625, 0.75), unplaced),
    )


def norms() -> np.ndarray:
    """Norms around 1 of 20 images, 9 in one corner."""
    values = np.random.default_rng(0).normal(1, 0.1, (20, 3, 4))
    values[:, 0, 3] = 9.0
    return values


def components(explained: float) -> Components:
    maps = np.random.default_rng(0).normal(size=(2, 3, 4, 3))
    return Components(maps=maps, explained=np.array([explained, 0.02, 0.01]), between=np.array([0.25, 0.5, 0.75]))


def found(**more: object) -> Inspection:
    """An inspection with everything in it."""
    draw = np.random.default_rng(0)
    picture = draw.integers(0, 256, (80, 80, 3), dtype=np.uint8)
    maps = {name: draw.random((3, 4)) for name in ("attention", "rollout", "gradient")}
    sample = Sample(key="a/1.jpg", label="bee", score=0.75, picture=picture, maps=maps)
    embeddings = draw.normal(size=(3, 4, 6))
    embeddings /= np.linalg.norm(embeddings, axis=2, keepdims=True)
    given: dict = {
        "title": "bees", "model": "a ViT", "image_size": (12, 16), "patch_size": (4, 4), "parameters": 5_717_416,
        "multiply_adds": 1_250_000, "images": 9, "data": "bees, val", "command": "vitrail inspect bees", "date": "2026-05-04",
        "filters": Filters(pictures=draw.integers(0, 256, (8, 4, 4, 3), dtype=np.uint8),
                           explained=np.array([0.5, 0.3, 0.1, 0.04, 0.03, 0.01, 0.01, 0.01], np.float32), width=9),
        "positions": Positions(similarity=np.einsum("hwd,yxd->hwyx", embeddings, embeddings), neighbour_rate=0.75,
                               neighbour_rate_with_corners=0.875, lines=LineSimilarity(0.5, 0.25, 0.125)),
        "heads": [layer(5, 12, 19), layer(8, 9, 10)], "samples": [sample, replace(sample, picture=picture[:8, :8])],
        "tokens": Tokens(maps=[MapNorms(np.ones((20, 3, 4))), MapNorms(norms())], after="block",
                         neuron=Neuron(417, 170.5, 0.01, 2.0)),
        "painted": Painted(pictures=[picture, picture], components=components(0.1)),
        "biases": biases(), "notes": ["one image was bad"],
        "cost": [CostPoint((16, 16), (4, 4), tokens, tokens / 1000, tokens * 100, tokens**2 / 1000, tokens**2 * 100, 10**6)
                 for tokens in (17, 65)],
        "findings": [Finding(claim="heads are local", holds=True, words="The nearest is 0.25."),
                     Finding(claim="distance grows", holds=False, words="It does not."),
                     Finding(claim="lines are alike", holds=None, words="There are no positions.")],
    }  # fmt: skip
    return Inspection(**{**given, **more})


def written(folder: Path, given: Inspection) -> Page:
    path = write_inspection(folder, given)
    assert path == folder / "report.html"
    for drawing in folder.glob("*.svg"):
        source = ElementTree.parse(drawing)
        assert "var(" not in drawing.read_text()
        assert not re.search(r'="[^"]*\b(nan|inf)\b', ElementTree.tostring(source.getroot(), "unicode"))
    return Page(path.read_text("utf-8"))


def test_a_full_inspection_has_every_section_picture_and_drawing(tmp_path):
    page = written(tmp_path, found())
    assert page.sections == EVERY
    assert [each["href"] for each in page.all("a")] == [f"#{name}" for name in EVERY]
    maps = {f"{name}-{number}.png" for name in ("attention", "rollout", "gradient") for number in (1, 2)}
    assert {path.name for path in tmp_path.glob("*.png")} == {"filters.png", "positions.png", "components.png"} | maps
    drawn = {"attention-distance", "entropy", "attention-to-prefix", "shifts", "equivariance", "locality"}
    drawn |= {"patch-norms", "patch-norms-histogram", "outliers"}
    assert {path.stem for path in tmp_path.glob("*.svg")} == drawn | {"cost-time", "cost-memory"}
    for picture in tmp_path.glob("*.png"):
        with Image.open(picture) as opened:
            opened.verify()


@pytest.mark.parametrize(
    ("without", "gone"),
    [
        ({"positions": None}, {"positions"}),
        ({"heads": []}, {"distance", "entropy"}),
        ({"samples": []}, {"samples"}),
        ({"biases": None}, {"biases"}),
        ({"tokens": None}, {"norms"}),
        ({"painted": None}, {"components"}),
        ({"cost": []}, {"cost"}),
        (
            {
                "positions": None,
                "heads": [],
                "samples": [],
                "tokens": None,
                "painted": None,
                "biases": None,
                "cost": [],
                "images": 0,
                "findings": [],
            },
            {"positions", "distance", "entropy", "norms", "components", "samples", "biases", "cost"},
        ),
    ],
    ids=lambda each: "-".join(sorted(each)),
)
def test_findings_without_data_have_no_section(tmp_path, without, gone):
    page = written(tmp_path, found(**without))
    assert page.sections == [name for name in EVERY if name not in gone]
    assert "one image was bad" in page.said
    assert (tmp_path / "positions.png").exists() == ("positions" not in gone)


def test_text_from_outside_is_never_markup(tmp_path):
    plain = found()
    samples = [replace(each, key=PAYLOAD, label=PAYLOAD) for each in plain.samples]
    findings = [replace(each, claim=PAYLOAD, words=PAYLOAD) for each in plain.findings]
    hostile = replace(plain, samples=samples, findings=findings, title=PAYLOAD, model=PAYLOAD, data=PAYLOAD, command=PAYLOAD,
                      machine=PAYLOAD, versions={PAYLOAD: PAYLOAD}, date=PAYLOAD, notes=[PAYLOAD])  # fmt: skip
    before, after = written(tmp_path / "plain", plain), written(tmp_path / "hostile", hostile)
    assert len(after.scripts) == 1
    assert len(after.all("img")) == len(before.all("img"))
    assert not [each for _, each in after.elements if any(key.startswith("on") for key in each)]
    assert after.words.count(PAYLOAD) > 12


def test_every_finding_has_a_verdict_and_the_tested_ones_are_counted(tmp_path):
    page = written(tmp_path, found())
    assert "1 of 2" in page.said
    for said in ("✓ true heads are local", "✗ false distance grows", "– not tested lines are alike"):
        assert said in page.said
    nothing = [replace(each, holds=None) for each in found().findings]
    assert " of 0" not in written(tmp_path / "none", found(findings=nothing)).said


def test_findings_that_are_not_of_the_paper_are_listed_and_not_counted(tmp_path):
    more = Finding(claim="norms are odd", holds=True, words="Some are.", of_paper=False)
    page = written(tmp_path, found(findings=[*found().findings, more]))
    assert "1 of 2" in page.said and "✓ true norms are odd" in page.said


def test_norms_are_shown_with_what_follows_from_outliers(tmp_path):
    page = written(tmp_path, found())
    assert "Neuron 417 of the MLP of block 2 makes them" in page.said
    assert "row 0, column 3: 100 % of the images" in page.said
    values = norms()
    values[:, 0, 3] = 1.0
    for odd in (values, values * 0, values * np.nan):
        page = written(tmp_path / "none", found(tokens=Tokens(maps=[MapNorms(odd)], after="stage")))
        assert "What follows" not in page.said and "norms" in page.sections
        assert not (tmp_path / "none" / "outliers.svg").exists()


def test_components_that_explain_little_are_called_poor(tmp_path):
    said = written(tmp_path, found()).said
    assert "1, red 10.0 % 25.0 % 2, green 2.0 % 50.0 %" in said
    assert "explain 13.0 % of the variance, less than 15 %: these maps are poor" in said
    painted = replace(found().painted, components=components(0.12))
    assert "explain 15.0 % of the variance. A component" in written(tmp_path, found(painted=painted)).said


def test_the_components_that_reach_most_of_the_variance_are_counted(tmp_path):
    filters = found().filters
    assert "explain 100 % of their variance; 90 % is reached with 3 components." in written(tmp_path, found()).said
    few = replace(filters, pictures=filters.pictures[:2])
    said = written(tmp_path / "few", found(filters=few)).said
    assert (
        "The first 2 principal components of 9 filters explain 80.0 % of their variance; 90 % is reached with 3" in said
    )


def test_a_first_layer_without_components_is_said(tmp_path):
    filters = Filters(pictures=np.zeros((0, 4, 4, 3), np.uint8), explained=np.zeros(0, np.float32), width=1)
    assert "only one filter" in written(tmp_path, found(filters=filters)).said


def test_pictures_of_pixels_are_embedded_without_loss(tmp_path):
    page = written(tmp_path, found())
    embedded = [each["src"] for each in page.all("img") if each.get("class") == "ground"]
    assert len(embedded) == 2
    kind, content = str(embedded[0]).split(",")
    assert kind == "data:image/png;base64"
    inside = np.asarray(Image.open(io.BytesIO(base64.b64decode(content))))
    with Image.open(tmp_path / "filters.png") as beside:
        assert (inside == np.asarray(beside)).all()


def test_a_large_grid_of_positions_shows_some_of_its_tiles(tmp_path):
    large = replace(found().positions, similarity=np.zeros((20, 40, 20, 40)))
    page = written(tmp_path, found(positions=large))
    assert "Tiles are shown for one in 3 rows and columns of the 20 × 40 positions." in page.said
    with Image.open(tmp_path / "positions.png") as picture:
        assert max(picture.size) < 1000


def test_there_is_one_dot_for_each_head_and_it_says_which(tmp_path):
    heads = [layer(3, 4), layer(5, 6, 7, 8), layer(9)]
    drawing = charts.distance_chart(heads)
    dots = re.findall(r'<circle[^>]*class="head"[^>]*><title>([^<]*)', drawing)
    assert len(dots) == 7
    assert dots[5] == "layer 1, head 3: 8.0 px"
    page = written(tmp_path, found(heads=heads))
    rows = [each for each in page.all("th") if each.get("scope") == "row" and "data-value" in each]
    assert [each["data-value"] for each in rows] == ["0", "0", "1", "1", "1", "1", "2"]
    assert "3.0 px (layer 0, head 0)" in page.said
    assert "9.0 px (layer 2, head 0)" in page.said


def test_dots_stand_at_their_distance():
    drawing = charts.distance_chart([layer(10, 20, uniform=40.0)])
    high, low = (float(y) for y in re.findall(r'cy="([\d.]+)"[^>]*class="head"', drawing))
    zero = next(float(y) for y in re.findall(r'y1="([\d.]+)"', drawing) if f'y="{float(y) + 3.8:.1f}"' in drawing)
    assert zero - low == pytest.approx(2 * (zero - high), abs=0.2)


def test_layers_in_which_no_place_asks_are_gaps_with_a_word(tmp_path):
    heads = [layer(3, 4), layer(), layer(), layer(5, 6), layer()]
    page = written(tmp_path, found(heads=heads))
    drawing = (tmp_path / "attention-distance.svg").read_text()
    assert drawing.count('class="head"') == 4
    assert drawing.count(">no spatial queries</text>") == 2  # once for both in the middle
    assert (tmp_path / "entropy.svg").read_text().count("no spatial queries</title>") == 6
    assert "In 3 layers, only prefix tokens are queries." in page.said


def test_a_model_in_which_no_place_ever_asks_has_a_page(tmp_path):
    page = written(tmp_path, found(heads=[layer(), layer()]))
    assert page.sections == EVERY
    assert "No layer has spatial queries" in page.said


def test_the_line_of_uniform_attention_is_of_each_layer():
    drawing = charts.distance_chart([layer(3, uniform=10.0), layer(5, uniform=20.0)])
    dashed = next(path for path in re.findall(r"<path[^>]*>", drawing) if "dasharray" in path)
    heights = re.findall(r"[ML][\d.]+ ([\d.]+)", dashed)
    assert len(heights) == 4
    assert len(set(heights)) == 2


def test_a_cell_stands_for_each_head_of_ragged_layers():
    drawing = heat_map("Entropy", [np.array([0.25]), np.array([0.5, 0.75, np.nan])])
    said = re.findall(r"<rect[^>]*><title>([^<]*)", drawing)
    assert said == [
        "layer 0, head 0: 0.25",
        "layer 1, head 0: 0.50",
        "layer 1, head 1: 0.75",
        "layer 1, head 2: no spatial queries",
    ]


def test_attention_to_tokens_without_a_place_is_told_only_where_there_is_any(tmp_path):
    page = written(tmp_path, found(heads=[layer(3, 4, prefix=0.0)]))
    assert not (tmp_path / "attention-to-prefix.svg").exists()
    assert "to prefix tokens" not in page.said


@pytest.mark.parametrize(
    ("unplaced", "said"),
    [
        (Response(1e-12, 0.5, 0.0), "the features change only by rounding errors (1e-12)"),
        (Response(0.125, 0.5, 0.0), "Without position embeddings they change by 0.12"),
        (None, "Without position embeddings this was not tested"),
    ],
    ids=["blind to order", "knows places", "not asked"],
)
def test_the_section_on_positions_explains_them(tmp_path, unplaced, said):
    page = written(tmp_path, found(biases=biases(unplaced)))
    assert said in page.said
    assert (
        "the features change by 0.25 (between different images: 0.62). The prediction changes for 75 % of the images."
        in page.said
    )


def test_a_model_without_a_head_has_no_answers_that_change(tmp_path):
    silent = {shift: each._replace(changed=None, apart=None) for shift, each in biases().shifts.items()}
    page = written(tmp_path, found(biases=replace(biases(), shifts=silent)))
    assert "changes most predictions" not in page.said


def test_figures_of_maps_and_shifts_are_said_where_they_are_known(tmp_path):
    page = written(tmp_path, found())
    assert "A shift by 4 pixels changes most predictions: 40.0 % of the images." in page.said
    assert "The value is 0.88 for map 0." in page.said
    assert "The value is 3.5 px for map 0." in page.said
    same = {shift: each._replace(changed=0.0) for shift, each in biases().shifts.items()}
    two = [MapEquivariance((4, 4), 1, concordance) for concordance in (None, 0.75, 0.5)]
    page = written(tmp_path / "two", found(biases=replace(biases(), shifts=same, maps=two)))
    assert "No prediction changes." in page.said
    assert "The value is 0.75 for map 1 and 0.50 for map 2." in page.said


def test_cost_is_drawn_with_its_powers_and_what_was_not_tried_is_a_dash(tmp_path):
    page = written(tmp_path, found())
    assert "time 1.00, with full attention matrices 2.00; memory 1.00, with full attention matrices 2.00." in page.said
    untried = [each._replace(plain_seconds=None, plain_bytes=None) for each in found().cost]
    page = written(tmp_path / "untried", found(cost=untried))
    assert "exponents" not in page.said
    assert "full attention matrices" not in (tmp_path / "untried/cost-time.svg").read_text()


def test_one_size_has_a_cost_too(tmp_path):
    page = written(tmp_path, found(cost=found().cost[:1]))
    assert "cost" in page.sections


def test_a_map_says_how_far_its_strongest_patch_stands_out(tmp_path):
    sample = replace(found().samples[0], maps={"attention": np.array([[1.0, 1.0, 4.0]]), "gradient": np.zeros((2, 2))})
    page = written(tmp_path, found(samples=[sample]))
    assert "attention, last layer: peak 2.0 × its mean" in page.said
    assert "gradient relevance: zero everywhere" in page.said


def test_a_folder_that_cannot_be_written_is_a_disk_error(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(DiskError, match="could not be written"):
        write_inspection(tmp_path / "file", found())
