"""Runs in the browser: their rows, their curves, and what becomes of both while they train."""

from __future__ import annotations

import json
import os
import re

from tests.serving.browser.page import BROWSER, PHONE, expect
from tests.serving.written_runs import train
from vitrail.files import write_checksummed

pytestmark = BROWSER


def test_a_server_of_runs_alone_shows_them_and_their_curves(visit, serve, runs):
    page = visit(serve(None, runs=runs))
    rows = page.locator("#runs-rows tr")
    expect(rows).to_have_count(3)
    assert not page.locator("#to-picture").is_visible()
    assert "<b>bold & co" in page.locator("#runs-rows").inner_text()
    assert page.locator("#runs-rows b").count() == 0
    page.get_by_role("button", name="flowers").click()
    charts = page.locator(".chart")
    expect(charts).to_have_count(3)
    assert [charts.nth(at).locator("h3").inner_text() for at in range(3)] == ["Loss", "Accuracy", "Learning rate"]
    told = charts.first.locator("svg").get_attribute("aria-label")
    assert "training: from 2.5 at step 1 to 0.0833 at step 30." in told
    page.get_by_label("Curves of leaves").check()
    keys = page.locator("#runs-keys li")
    expect(keys).to_have_text(["flowers", "leaves", "training", "validation"])
    assert charts.first.locator("svg text", has_text=re.compile("^step$")).count() == 1
    charts.first.locator("svg").hover()
    assert "flowers, training" in charts.first.locator(".under").inner_text()


def test_a_run_is_seen_while_it_trains(visit, serve, tmp_path):
    folder = train(tmp_path / "live", 3, state="running")
    page = visit(serve(None, runs=tmp_path))
    chart = page.locator(".chart svg").first
    expect(chart).to_have_attribute("aria-label", re.compile("at step 3"))
    with open(folder.path / "metrics.jsonl", "a") as metrics:
        metrics.write(json.dumps({"step": 4, "loss": 0.25, "lr": 1e-4}) + "\n")
    expect(chart).to_have_attribute("aria-label", re.compile("0.25 at step 4"))
    folder.write_status("finished", steps=4)
    expect(page.locator(".state")).to_have_text("finished")


def test_runs_without_steps_are_not_ticked_but_say_so(visit, serve, tmp_path):
    for age, (name, taken) in enumerate({"empty": 0, "older": 3, "oldest": 6}.items()):
        folder = train(tmp_path / name, taken=taken, state="failed")
        for each in folder.path.iterdir():
            os.utime(each, (1.7e9 - age, 1.7e9 - age))
    page = visit(serve(None, runs=tmp_path))
    expect(page.get_by_label("Curves of older")).to_be_checked()
    assert page.locator("#runs-rows input:checked").count() == 1
    assert page.locator("#spoken").inner_text() == ""  # what nobody did is not spoken of
    page.get_by_label("Curves of empty").check()
    expect(page.locator("#runs-empty")).to_have_text("empty: no steps yet.")
    assert "empty" in page.locator("#spoken").inner_text()


def test_a_run_that_begins_is_followed_until_one_is_chosen(visit, serve, tmp_path):
    train(tmp_path / "old", 3)
    page = visit(serve(None, runs=tmp_path))
    expect(page.get_by_label("Curves of old")).to_be_checked()
    begun = train(tmp_path / "new", taken=0, state="running")
    expect(page.get_by_label("Curves of new")).to_be_checked(timeout=20_000)
    expect(page.locator("#runs-empty")).to_have_text("new: no steps yet.")
    with open(begun.path / "metrics.jsonl", "a") as metrics:
        metrics.write(json.dumps({"step": 1, "loss": 0.25, "lr": 1e-4}) + "\n")
    chart = page.locator(".chart svg").first
    expect(chart).to_have_attribute("aria-label", re.compile("0.25 at step 1"))
    page.get_by_label("Curves of old").check()
    train(tmp_path / "third", 1, state="running")
    expect(page.locator("#runs-rows tr")).to_have_count(3)
    assert not page.get_by_label("Curves of third").is_checked()


def test_a_smoothed_line_ends_where_its_window_does(visit, serve, tmp_path):
    folder = train(tmp_path / "long", 300, taken=0)
    with open(folder.path / "metrics.jsonl", "a") as metrics:
        for step in range(1, 301):  # the last value leaps
            metrics.write(json.dumps({"step": step, "loss": 9.0 if step == 300 else 1.0, "lr": 1e-4}) + "\n")
    page = visit(serve(None, runs=tmp_path))
    lines = page.locator(".chart").first.locator("path")
    rough, smooth = (lines.nth(at).get_attribute("d")[1:].split("L") for at in range(2))
    assert len(rough) == 300
    assert rough[5:-5] == [place.split()[0] + " " + rough[0].split()[1] for place in rough[5:-5]]
    assert [place.split()[0] for place in smooth] == [place.split()[0] for place in rough[5:-5]]
    assert all(abs(float(place.split()[1]) - float(rough[0].split()[1])) < 20 for place in smooth)


def test_a_phone_shows_state_step_and_best_of_a_run(visit, serve, runs):
    page = visit(serve(None, runs=runs), size=PHONE)
    row = page.locator("#runs-rows tr", has_text="flowers")
    for part, words in ((".state", "finished"), (".bar", "30 / 30"), (".figure", "top1 375")):
        box = row.locator(part).bounding_box()
        assert box["x"] >= 0
        assert box["x"] + box["width"] <= PHONE["width"]
        assert words in row.locator(part).inner_text()


def test_a_study_is_listed_with_its_trials_and_the_time_left(visit, serve, tmp_path):
    folder = tmp_path / "runs" / "vit-paper"
    folder.mkdir(parents=True)
    write_checksummed(folder / "progress.json", {"state": "running", "done": 12, "trials": 78, "seconds_left": 1490.0})
    page = visit(serve(None, runs=tmp_path / "runs"))
    row = page.locator("#runs-rows tr").inner_text()
    assert all(words in row for words in ("vit-paper", "running", "25 min left", "12 / 78"))
    page.get_by_role("button", name="vit-paper").click()
    expect(page.locator("#runs-empty")).to_contain_text("its figures are in report.html")
