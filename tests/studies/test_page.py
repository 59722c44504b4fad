"""The page of a study: verdicts, charts and tables of studies whose results are known."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.studies.synthetic_trials import TWO, by_arm, decide, make_study, pair, train, tune
from vitrail.studies.design import LIMIT, Experiment, Finding
from vitrail.studies.page import build_page, spell_effect, write_study_page
from vitrail.studies.paper import fit_table_6
from vitrail.studies.verdicts import Equal, Greater

NAMES = ("experiment", "kind", "seconds", "attempts", "machine")
COSTS: dict[str, Any] = {
    "total_seconds": 90.0, "flops": 2e12, "predicted_seconds": 60.0, "budget_seconds": None, "machine": "a machine",
    "command": "vitrail study photos <b>", "versions": {"vitrail": "1"}, "date": "2026-11-25",
    "trials": [dict(zip(NAMES, ("two", kind, 45.0, 2, "cpu on host"))) for kind in ("tuning", "final")],
}  # fmt: skip


@pytest.fixture(scope="module")
def numbers() -> dict[str, Any]:
    sized = Experiment(name="sizes", arms=TWO.arms, factors={LIMIT: (100, 4000)}, measure=("heads",))
    claims = [
        pair("better", quote="A <quote> & more", source="section 1", question="Is it?", caveat="Small."),
        pair("worse", rule=Greater(by=0.5)),
        pair("same", rule=Equal(within=0.5)),
        pair("beyond", beyond="too small", rule=Greater(by=0.4)),
        pair("nothing", contrast=Finding(arm="a", figure="heads.no")),
    ]
    study = make_study(*claims, two=TWO, sizes=sized)
    trials = train(study, by_arm(a=0.7))
    findings = {"heads": {"layers": [{"distance": [3.0, 9.0], "uniform": 11.0}] * 2}}
    curve = tuple({"step": step, "train_accuracy": 0.1 * step} for step in range(1, 9))
    for place, result in trials["sizes"].items():
        trials["sizes"][place] = replace(result, findings=findings, curve=curve)
    first = next(iter(trials["two"]))
    trials["two"][first] = replace(trials["two"][first], state="diverged", error="loss is nan")
    edge = tune({1e-3: 1.0, 2e-3: 1.1})
    return decide(study, trials, {"sizes": {"a": edge}})


def test_every_claim_has_a_card_with_its_verdict_and_every_section_is_there(numbers: dict[str, Any]) -> None:
    document, plots = build_page(numbers, COSTS)
    for claim in numbers["claims"]:
        assert f'id="claim-{claim["name"]}"' in document
    assert len(numbers["claims"]) == 4
    assert "A &lt;quote&gt; &amp; more" in document
    assert "photos &lt;b&gt;" in document
    titles = re.findall("<h2>(.*?)</h2>", document)
    expected = ["Verdicts", "Learning curves", "Learning rates", "Attention by depth", "Settings and regimes"]
    assert titles[1:6] == expected  # below the notes
    assert {"Cost and time", "Not asked and not testable", "How figures were computed", "Run details"} <= set(titles)
    assert {"curves-sizes", "heads-01-sizes: a at data.limit 100"} <= set(plots)
    assert "loss is nan" in document
    assert "At the edge of its grid" in document
    assert "undertrained" in document
    assert not re.search(r"(src|href)=\"(?!data:|#)", document)  # nothing loads from elsewhere


def test_the_tally_counts_what_was_tested_here(numbers: dict[str, Any]) -> None:
    document, _ = build_page(numbers, COSTS)
    held = sum(claim["verdict"] == "held" for claim in numbers["claims"])
    assert f'<p class="figure-value">{held} of 4</p>' in document


def test_the_table_of_the_paper_is_shown_apart_from_the_claims(numbers: dict[str, Any]) -> None:
    assert numbers["published"] == {}
    document, _ = build_page({**numbers, "published": {"ImageNet": fit_table_6("ImageNet")}}, COSTS)
    assert "2.09× [1.6×, 2.77×]" in document
    assert " of 4</p>" in document


def test_a_study_without_results_has_a_page_and_charts_are_files(tmp_path: Path, numbers: dict[str, Any]) -> None:
    study = make_study(pair(), two=TWO)
    path = write_study_page(tmp_path, decide(study, {}), {**COSTS, "trials": []})
    assert "not trained yet" in path.read_text()
    write_study_page(tmp_path, numbers, COSTS)
    assert (tmp_path / "plots" / "curves-sizes.svg").read_text().startswith("<svg")


def test_an_effect_is_spelt_with_its_interval_where_that_is_known() -> None:
    effect = {"estimate": 0.023, "low": 0.011, "high": 0.035, "unit": "points"}
    assert spell_effect(effect) == "+2.3 points [+1.1, +3.5]"
    assert spell_effect({**effect, "low": None}) == "+2.3 points"
    assert spell_effect(None) == "not measured"
