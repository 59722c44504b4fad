"""Pages: the layout that all share, tables as they are shown, and the outline of whole pages."""

from __future__ import annotations

import base64
import hashlib
import re
from dataclasses import replace
from pathlib import Path

import pytest
from jinja2 import UndefinedError

from tests.reports import test_classification, test_pretraining
from tests.reports.inspection import test_one_model
from tests.reports.reading import PAYLOAD, Page
from tests.reports.test_transfer import DONE
from vitrail.analysis.cost import Speed
from vitrail.analysis.palette import DARK, LIGHT
from vitrail.markup import Markup, join, tag
from vitrail.reports import pretraining, transfer
from vitrail.reports.inspection.comparison import ComparedCost, Comparison, write_comparison
from vitrail.reports.inspection.one_model import write_inspection
from vitrail.reports.inspection.pair import write_pair
from vitrail.reports.page import Cell, Section, Table, environment, frame

COST = ComparedCost(
    model=PAYLOAD, size=(64, 64), tokens=17, parameters=9_000, multiply_adds=2_000_000, bytes_per_image=5_000,
    largest_batch=128, largest_batch_is="measured", speed=Speed(8, 90.0, 80.0, 100.0),
)  # fmt: skip
COMPARISON = Comparison(costs=[COST], precision="fp32", device="cpu", versions={"torch": "2"}, date="2026-05-04")
PAGES = {
    "classification": lambda folder: test_classification.write(
        folder, test_classification.run(test_classification.answers(classes=(PAYLOAD, "b")))
    ),
    "pretraining": lambda folder: pretraining.write_pretrain_report(folder, test_pretraining.facts(title=PAYLOAD)),
    "inspection": lambda folder: write_inspection(folder, test_one_model.found(title=PAYLOAD)),
    "pair": lambda folder: write_pair(folder, (test_one_model.found(title=PAYLOAD), test_one_model.found(title="b"))),
    "comparison": lambda folder: write_comparison(folder, COMPARISON),
    "transfer": lambda folder: transfer.write_transfer(folder, replace(DONE, model=PAYLOAD)),
}
HEADINGS = {
    "classification": "Notes, Training curves, Confusion matrix, Per-class metrics, Most confident mistakes, Calibration, "
    "Run details",
    "pretraining": "Notes, Training curves, Inputs and outputs of the objective, Feature health, Run details, Next steps",
    "inspection": "Notes, First-layer filters, Position embedding similarity, Attention distance, Attention entropy, "
    "Patch norms, Principal components of patches, Attention maps, Inductive biases, Computational cost, Run details",
    "pair": "Notes, Findings of the ViT paper, Figures, Attention distance, Position embedding similarity, First-layer filters, "
    "Run details",
    "comparison": "Speed and memory, All figures, Run details",
    "transfer": "Notes, Accuracy by task and protocol, Run details",
}


def show(table: Table) -> str:
    """The HTML of a table, without the whitespace between elements."""
    source = '{% from "components.html" import table %}{{ table(given) }}'
    return re.sub(r"\s*\n\s*", "", environment().from_string(source).render(given=table))


@pytest.mark.parametrize("name", PAGES)
def test_every_page_has_its_headings_one_safe_script_and_nothing_from_elsewhere(tmp_path: Path, name: str) -> None:
    path = PAGES[name](tmp_path)
    source = path.read_text("utf-8")
    page = Page(source)
    headings = re.findall(r"<h2>([^<]*)</h2>", source)
    assert ", ".join(headings) == HEADINGS[name]
    assert [each["href"] for each in page.all("a")] == [f"#{section}" for section in page.sections]
    assert PAYLOAD in page.said and "<script>alert" not in source
    policy = next(each["content"] for each in page.all("meta") if each.get("http-equiv") == "Content-Security-Policy")
    digest = base64.b64encode(hashlib.sha256(page.scripts[0].encode()).digest()).decode()
    assert policy == f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"
    assert len(page.scripts) == 1 and not any(key.startswith("on") for _, each in page.elements for key in each)
    places = [each[key] for _, each in page.elements for key in ("src", "href", "action", "data") if key in each]
    assert all(str(place).startswith(("data:", "#")) for place in places)
    assert not re.search(r"https?:|url\(|@import", source.replace('xmlns="http://www.w3.org/2000/svg"', ""))
    assert all(each.get("alt") for each in page.all("img")) and all(each.get("scope") for each in page.all("th"))
    assert all(each.get("role") == "img" for each in page.all("svg") if each.get("aria-hidden") != "true")


def test_a_page_has_its_colours_for_light_dark_and_paper() -> None:
    page = frame("kind", "title", "", Markup(""), [])
    light, dark, paper = re.split(
        r"@media\(prefers-color-scheme:dark\)|@media print", page.partition("*, *::before")[0]
    )
    for part, colours in ((light, LIGHT), (dark, DARK), (paper, LIGHT)):
        assert all(f"--{name}:{colour}" in part for name, colour in colours.items())


def test_sections_are_listed_and_have_a_heading_unless_it_is_in_the_body() -> None:
    sections = [Section("Run details", Markup("<p>a</p>"), "Details <of> it"), Section("Bare", Markup("<h2>b</h2>"))]
    page = Page(frame("vitrail report", "bees & ants", "2026-05-04", Markup("<i>first</i>"), sections))
    assert page.sections == ["run-details", "bare"]
    assert "vitrail report · 2026-05-04 bees & ants Run details Bare first Details <of> it a b Generated" in page.said


def test_a_table_has_headings_keys_remarks_and_bars() -> None:
    rows = [[Cell("<a>", gloss="one & all", key=2), Cell("50 %", share=0.5), "7"]]
    shown = show(Table('by "size"', ("name", "share", "count"), rows))
    assert 'aria-label="by &#34;size&#34;"' in shown
    assert (
        '<tr><th scope="col" class="text">name</th><th scope="col">share</th><th scope="col">count</th></tr>' in shown
    )
    assert '<th scope="row" data-value="2">&lt;a&gt;<span class="gloss">one &amp; all</span></th>' in shown
    assert '<td class="bar" style="--share:0.500">50 %</td><td>7</td>' in shown


def test_headings_of_a_sorted_table_are_buttons_and_say_the_order() -> None:
    shown = show(Table("t", ("name", "F1"), [["a", Cell("–", key="")]], sorted_by="F1"))
    assert '<th scope="col" aria-sort="ascending"><button type="button">F1</button></th>' in shown
    assert '<td data-value="">–</td>' in shown


def test_columns_of_text_without_a_heading_are_cells() -> None:
    shown = show(Table("t", ("true", "answer", "count"), [["a", "b", "3"]], text=2, headed=False))
    assert '<td class="text">a</td><td class="text">b</td><td>3</td>' in shown


def test_a_name_that_a_template_is_not_given_is_an_error() -> None:
    with pytest.raises(UndefinedError, match="missing"):
        environment().from_string("{% if missing %}{% endif %}").render()


def test_markup_is_kept_and_all_else_is_escaped():
    assert tag("b", Markup("<i>"), "<i>", None, 3) == "<b><i>&lt;i&gt;3</b>"
    assert tag("img", alt='"', data_value=1, class_=None) == '<img alt="&quot;" data-value="1">'
    assert join("<", Markup("<")) == "&lt;<"
