"""The page of a study: its figures and words arrive, safely; what was not measured is left out."""

from __future__ import annotations

import csv
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from tests.reports.reading import PAYLOAD, Page
from tests.reports.study import synthetic
from vitrail.errors import DiskError
from vitrail.reports import charts as draw
from vitrail.reports.study.accounts import spend
from vitrail.reports.study.compute_figures import add_seconds
from vitrail.reports.study.documents import write_progress, write_study
from vitrail.reports.study.page import page
from vitrail.reports.study.progress import progress_page

SECTIONS = [
    "verdicts", "controls", "data", "compute", "shape", "arms", "learning-rates", "attention", "positions", "published",
    "regimes", "cost", "not-asked", "fits", "run-details",
]  # fmt: skip
NAMES = {"arm", "plus", "minus", "against", "axis", "family", "model"}
KEPT = {"verdict", "unit", "regime", "kind", "rate_robust", "state"}  # words that a study chooses from a list


def read(numbers: dict[str, Any], costs: dict[str, Any] | None = None) -> Page:
    return Page(page(numbers, costs or {})[0])


def changed(tree: Any, change: Callable[[str, Any], Any], key: str = "") -> Any:
    """The tree with every leaf replaced by what ``change`` makes of its key and itself."""
    if isinstance(tree, dict):
        return {name: changed(value, change, name) for name, value in tree.items()}
    return [changed(value, change, key) for value in tree] if isinstance(tree, list) else change(key, tree)


def test_a_whole_study_has_all_sections_in_the_order_of_reading():
    assert read(synthetic.numbers(), synthetic.costs()).sections == SECTIONS


def test_the_words_and_figures_of_a_claim_stand_in_its_card():
    claim = synthetic.claims()[0]
    said = read({"claims": [claim]}).said
    for words in (claim["name"], claim["quote"], claim["source"], claim["question"], claim["caveat"]):
        assert words in said
    assert "held, rate-sensitive" in said
    assert "+0.17 logit [+0.10, +0.24]" in said
    assert "Rule: at least +0.05 logit." in said
    assert "gap of ViT minus gap of BiT : +3.1 points [+1.9, +4.3]" in said.replace("BiT:", "BiT :")
    assert "The interval lies above zero and reaches 1 point" in said
    for name, value in (
        ("seeds", "3"),
        ("degrees of freedom", "22.4"),
        ("detectable", "0.08 logit"),
        ("interval", "95 %"),
        ("decided at", "99.5 %"),
    ):
        assert f"{name} {value}" in said


@pytest.mark.parametrize(
    ("low", "high", "words"),
    [
        (2, 4, "Rule: more than 1×; the paper says between 2× and 4×."),
        (0.25, 0.5, "Rule: less than 1×; the paper says between"),
    ],
)
def test_the_rule_of_a_ratio_is_its_direction_and_the_figure_of_the_paper_stands_beside_it(low, high, words):
    rule = {"kind": "ratio", "low": low, "high": high}
    said = read({"claims": [synthetic.claim("compute", "held", synthetic.effect(1.3, 0.2, "ratio"), rule=rule)]}).said
    assert words in said
    assert "the figure of the paper" in said
    assert "the claim holds here" not in said


def test_what_would_change_a_verdict_is_said_where_the_study_knows_it():
    undecided = next(claim for claim in synthetic.claims() if claim["verdict"] == "cannot tell")
    assert "What would change it 5 more seeds would show" in read({"claims": [undecided]}).said
    assert "What would change it" not in read({"claims": [undecided | {"to_tell": ""}]}).said


@pytest.mark.parametrize("verdict", ["held", "did not hold"])
@pytest.mark.parametrize("end", [None, math.nan, math.inf])
def test_no_verdict_is_shown_without_an_interval(verdict, end):
    measured = synthetic.effect(0.02, 0.01) | {"high": end}
    said = read({"claims": [synthetic.claim("bold", verdict, measured)]}).said
    assert "0 of 1 claim held" in said
    assert "cannot tell bold" in said
    assert "The file names no interval for this effect" in said
    assert "+2.0 points, no interval" in said


def test_a_claim_without_any_effect_is_shown_as_not_measured():
    said = read({"claims": [synthetic.claim("lost", "cannot tell", None, why="all cells failed")]}).said
    assert "not measured" in said
    assert "All cells failed" in said


@pytest.mark.parametrize("count", [0, 1, 40])
def test_any_number_of_claims_is_tallied(count):
    measured = synthetic.effect(0.02, 0.005)
    page = read({"claims": [synthetic.claim(f"claim {at}", "held", measured) for at in range(count)]})
    assert len([card for card in page.all("article") if "claim-card" in (card["class"] or "")]) == count
    said = {0: "This study judges no claim.", 1: "1 of 1 claim held", 40: "40 of 40 claims held"}
    assert said[count] in page.said
    assert ("verdicts" in page.sections) == (count > 0)


def test_the_tally_links_to_the_card_of_each_claim():
    page = read(synthetic.numbers())
    cards = {card["id"] for card in page.all("article")}
    links = {str(link["href"])[1:] for link in page.all("a") if str(link["href"]).startswith("#claim-")}
    assert len(links) == len(synthetic.claims())
    assert links < cards


def test_a_control_that_failed_is_an_alarm_and_one_that_passed_is_not():
    passed, failed = synthetic.controls()
    for quiet in (passed, passed | {"passed": None}):
        assert "control failed" not in read({"controls": [quiet]}).said
    page = read({"controls": [passed, failed | {"passed": False, "why": "the study is too small to see it"}]})
    assert "1 control failed half the images : the study is too small to see it" in page.said
    assert [each for each in page.all("aside") if each.get("class") == "alarm"]


@pytest.mark.parametrize(
    ("left_out", "section"),
    [
        ("claims", "verdicts"), ("controls", "controls"), ("rates", "learning-rates"), ("heads", "attention"),
        ("positions", "positions"), ("published", "published"), ("checklist", "fits"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("empty", [None, "absent", "empty"])
def test_what_a_study_lacks_is_left_out(left_out, section, empty):
    numbers = synthetic.numbers()
    value = numbers.pop(left_out)
    if empty != "absent":
        numbers[left_out] = None if empty is None else type(value)()
    assert read(numbers, synthetic.costs()).sections == [name for name in SECTIONS if name != section]


def test_figures_of_arms_need_their_arms():
    numbers = synthetic.numbers() | {"arms": []}
    assert {"data", "compute", "arms", "regimes"}.isdisjoint(read(numbers).sections)
    only = [row for row in synthetic.arms() if row["experiment"] == "pooling"]
    assert {"data", "compute"}.isdisjoint(read(numbers | {"arms": only}).sections)


def test_an_empty_study_is_still_a_page():
    assert read({}).sections == ["run-details"]


@pytest.mark.parametrize("nothing", [math.nan, None], ids=["NaN", "null"])
def test_numbers_that_are_missing_never_reach_the_page(nothing):
    # names with a dot are settings, which are shown as they are
    erase = lambda key, value: nothing if type(value) in (float, int) and "." not in key else value  # noqa: E731
    document, plots = page(changed(synthetic.numbers(), erase), changed(synthetic.costs(), erase))
    assert "nan" not in Page(document).said.lower()
    assert "None" not in Page(document).said
    assert not [name for name, plot in plots.items() if "nan" in plot]


def test_text_of_a_study_is_never_markup(tmp_path):
    replace = lambda key, value: PAYLOAD if isinstance(value, str) and key not in KEPT else value  # noqa: E731
    numbers, costs = changed(synthetic.numbers(), replace), changed(synthetic.costs(), replace)
    numbers["base"] = {PAYLOAD: PAYLOAD}
    write_study(tmp_path, numbers, costs, [{"arm": PAYLOAD}])
    page = Page((tmp_path / "report.html").read_text())
    assert len(page.scripts) == 1
    assert not page.all("img")
    assert not [each for _, each in page.elements if any(key.startswith("on") for key in each)]
    assert page.words.count(PAYLOAD) > 40
    for drawing in (tmp_path / "plots").iterdir():
        assert b"<script" not in drawing.read_bytes()


def test_the_files_of_a_study_are_the_page_its_charts_and_a_row_for_each_cell(tmp_path):
    path = write_study(
        tmp_path / "new" / "out", synthetic.numbers(), synthetic.costs(), [{"arm": "vit", "seed": 0}] * 3
    )
    assert path == tmp_path / "new" / "out" / "report.html"
    assert len(list(csv.DictReader((path.parent / "cells.csv").read_text().splitlines()))) == 3
    names = {drawing.stem for drawing in (path.parent / "plots").iterdir()}
    assert {"data-families-accuracy", "data-families-difference", "compute-flops", "compute-seconds", "axes"} < names
    assert "arms-pooling" in names
    assert "rates-01-vit" in names
    for drawing in (path.parent / "plots").iterdir():
        assert "var(--" not in ElementTree.parse(drawing).getroot().attrib.values()


@pytest.mark.parametrize("write", [lambda out: write_study(out, {}, {}), lambda out: write_progress(out, {})])
def test_a_folder_that_cannot_be_written_is_an_error_with_a_remedy(tmp_path, write):
    (tmp_path / "file").write_text("")
    with pytest.raises(DiskError):
        write(tmp_path / "file" / "out")


@pytest.mark.parametrize("longer", ["", " and more of its name" * 4])
def test_all_words_of_all_charts_lie_inside_of_them(longer):
    extend = lambda key, value: value + longer if key in NAMES else value  # noqa: E731
    numbers = changed(synthetic.numbers(), extend)
    for name, plot in page(numbers, synthetic.costs())[1].items():
        root = ElementTree.fromstring(plot)
        width = float(root.attrib["viewBox"].split()[2])
        for each in (each for each in root.iter() if each.tag.endswith("}text") and "transform" not in each.attrib):
            long = draw.length_of("".join(each.itertext())) * float(each.attrib["font-size"])
            start = float(each.attrib["x"]) - {"start": 0, "middle": 0.5, "end": 1}[each.attrib["text-anchor"]] * long
            assert start > -4, (name, each.text)
            assert start + long < width + 4, (name, each.text)


def circles(plot: str) -> list[dict[str, str]]:
    return [each.attrib for each in ElementTree.fromstring(plot).iter() if each.tag.endswith("}circle")]


def test_compute_limited_accuracies_are_hollow_and_their_range_is_hatched():
    rows = [
        synthetic.arm("families", "vit", accuracy, limit=limit, levels={"data.limit": limit}, regime=regime)
        for limit, accuracy, regime in (
            (100, 0.3, "data-limited"),
            (1_000, 0.4, "data-limited"),
            (10_000, 0.5, "compute-limited"),
        )
    ]
    plot = page({"arms": rows}, {})[1]["data-families-accuracy"]
    assert [dot["fill"] for dot in circles(plot)] == ["var(--cobalt)", "var(--cobalt)", "var(--paper)"]
    hatched = next(each for each in ElementTree.fromstring(plot).iter() if each.tag.endswith("}rect"))
    middle = sum(float(dot["cx"]) for dot in circles(plot)[1:]) / 2
    assert float(hatched.attrib["x"]) == pytest.approx(middle, abs=0.1)
    assert float(hatched.attrib["x"]) + float(hatched.attrib["width"]) == pytest.approx(
        draw.WIDTH - draw.RIGHT, abs=0.1
    )


def test_a_fitted_law_is_dashed_beyond_the_images_that_were_measured():
    plot = page(synthetic.numbers(), {})[1]["data-families-accuracy"]
    lines = {each.attrib.get("stroke-dasharray"): each.attrib for each in ElementTree.fromstring(plot).iter()}
    assert lines["1 3"]["d"].count("L") == len(synthetic.LIMITS) - 1
    assert lines[draw.DASHES]["d"].count("L") == 1  # from 60,000 to 90,000 images
    assert {lines[dashes]["stroke"] for dashes in ("1 3", draw.DASHES)} == {"var(--cobalt)"}


def test_the_axis_of_images_is_logarithmic():
    rows = [synthetic.arm("families", "vit", 0.4, limit=limit) for limit in (100, 1_000, 10_000)]
    left, middle, right = (float(dot["cx"]) for dot in circles(page({"arms": rows}, {})[1]["data-families-accuracy"]))
    assert middle - left == pytest.approx(right - middle, abs=0.11)
    assert right > left


def test_seconds_are_the_mean_of_the_final_cells_of_the_same_setting():
    row = synthetic.arm("compute", "vit-s", 0.5, levels={"schedule.steps": 256})
    cells = [
        {"experiment": "compute", "arm": "vit-s", "levels": {"schedule.steps": steps}, "seconds": seconds, "kind": kind}
        for steps, seconds, kind in (
            (256, 10.0, "final"),
            (256, 20.0, "final"),
            (512, 90.0, "final"),
            (256, 90.0, "tuning"),
        )
    ]
    assert [each["seconds"] for each in add_seconds([row, row | {"arm": "bit-s"}], cells)] == [15.0]


def test_the_rate_nearest_to_the_chosen_one_is_filled_and_an_edge_is_named():
    points = [{"lr": lr, "accuracy": 0.5} for lr in (1e-3, 2e-3, 4e-3)]
    numbers = {
        "rates": [
            {"arm": "vit", "points": points, "best": 2.7e-3},
            {"arm": "bit", "points": points, "best": 4e-3, "edge": True},
        ]
    }
    document, plots = page(numbers, {})
    assert [dot["fill"] for dot in circles(plots["rates-01-vit"])] == ["var(--paper)", "var(--cobalt)", "var(--paper)"]
    assert [dot["fill"] for dot in circles(plots["rates-02-bit"])] == ["var(--paper)", "var(--paper)", "var(--ruby)"]
    assert "At the edge of its grid: bit;" in Page(document).said


def test_the_published_table_is_shown_with_its_ratios_and_slopes():
    said = read({"published": synthetic.published()}).said
    assert "ImageNet 2.09× [1.59×, 2.77×] 0.127 0.155 0.067 0.08" in said
    assert "18 models; intervals by bootstrap over models." in said


def test_settings_are_listed_with_regime_gap_and_both_counts_of_operations():
    said = read({"arms": synthetic.arms()[:1]}).said
    assert "vit data-limited 500 3 32.1 % 31.5 % to 32.7 % 48.1 % 16.0 3.16 T 2.84 T 469 k 2e-3" in said


def test_costs_are_compared_with_the_prediction_and_summed_by_experiment():
    cells = [
        {"experiment": "families", "kind": "final", "seconds": seconds, "flops": 1e12, "attempts": 1}
        for seconds in (30.0, 60.0)
    ]
    cells.append({"experiment": "families", "kind": "tuning", "seconds": 30.0, "flops": 5e11, "attempts": 2})
    assert Page(spend(cells)).said.endswith(
        "families 2 1 min 30 s 45 s 2 T 75 % families learning rates 1 30 s 30 s 500 G 25 %"
    )
    said = read({}, {"cells": cells, "total_seconds": 90.0, "predicted_seconds": 120.0}).said
    assert "75 % of the prediction" in said
    assert "1 of them needed more than one attempt" in said
    assert "No cell failed or diverged." in said


def test_failures_mixed_commits_and_changed_plans_stand_at_the_top():
    said = read(synthetic.numbers()).said.partition("Each claim was written down")[0]
    assert "The cells come from 2 commits of vitrail: fcf2846, 912ec16." in said
    assert "The plan was changed 1 time" in said
    assert "1 cell failed or diverged" in said
    quiet = synthetic.numbers() | {"commits": ["fcf2846"], "plan": {"sha256": "5f"}, "failures": []}
    assert "Notes" not in read(quiet).said


def test_progress_says_what_is_done_and_what_is_left():
    page = Page(progress_page(synthetic.progress()))
    assert page.sections == ["experiments", "run-details"]
    for words in (
        "66 % of the cells",
        "About 22 min 20 s left.",
        "57 of 88",
        "17 of 36 2 1 10 min 40 s",
        "data-hungry",
    ):
        assert words in page.said
    assert [bar["aria-valuenow"] for bar in page.all("div") if bar.get("role") == "progressbar"] == [
        "66",
        "100",
        "50",
        "0",
    ]


def test_progress_without_a_plan_is_still_a_page(tmp_path):
    said = Page(write_progress(tmp_path, {"study": "mine", "state": "planning"}).read_text()).said
    assert "The plan is being made." in said
    assert "left." not in said
    assert Path(tmp_path / "report.html").is_file()
