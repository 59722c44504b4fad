"""More than two images: a table with the prediction of each, from which one is looked at, and a CSV."""

from __future__ import annotations

import csv
from pathlib import Path

from tests.serving.browser.page import BROWSER, CLASSES, PHONE, expect, file, photograph

pytestmark = BROWSER

BROKEN = {"name": "broken.png", "mimeType": "image/png", "buffer": b"no picture"}
NOTES = {"name": "notes.txt", "mimeType": "text/plain", "buffer": b"no picture"}


def choose(page, *files, number: int = 0) -> None:
    page.locator("#invitation input[type=file]").nth(number).set_input_files(files[0] if number else list(files))


def test_many_images_become_a_table_from_which_one_is_opened(visit, address, tmp_path):
    page = visit(address, expected=(422,))
    choose(page, *(file(f"{seed}.png", seed=seed) for seed in range(4)), BROKEN, NOTES)
    rows = page.locator("#batch tbody tr")
    expect(page.locator("#batch .lead")).to_have_text(
        "5 of 5 images (1 file of other types left out). Click an image to look at it."
    )
    expect(rows).to_have_count(5)
    expect(rows.nth(4)).to_contain_text("invalid image")
    expect(page.locator("#batch canvas")).to_have_count(4)
    for row in range(4):
        _, name, label, score = rows.nth(row).locator("td").all_text_contents()
        assert (name, score[-1]) == (f"{row}.png", "%")
        assert label in CLASSES
    with page.expect_download() as download:
        page.get_by_role("button", name="Save as CSV").click()
    download.value.save_as(tmp_path / "predictions.csv")
    with open(tmp_path / "predictions.csv", newline="") as table:
        listed = list(csv.DictReader(table))
    assert [row["path"] for row in listed] == [*(f"{seed}.png" for seed in range(4)), "broken.png"]
    assert [bool(row["error"]) for row in listed] == [False] * 4 + [True]
    assert [row["label"] for row in listed[:4]] == [
        rows.nth(row).locator("td").nth(2).text_content() for row in range(4)
    ]
    page.get_by_role("button", name="Look at 2.png").click()
    expect(page.locator(".stage .key")).to_have_text("2.png")
    page.locator(".bars").wait_for()
    expect(rows).to_have_count(5)  # the table stays
    page.get_by_role("button", name="Close the table").click()
    expect(page.locator("#batch")).to_be_hidden()


def test_a_folder_is_listed_with_the_names_of_its_folders(visit, address, tmp_path):
    for name in ("a/1.png", "a/2.png", "b/3.png", "b/notes.txt"):
        path = tmp_path / "photos" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(photograph(seed=len(name)) if name.endswith("png") else b"text")
    page = visit(address, size=PHONE)
    choose(page, str(tmp_path / "photos"), number=1)
    rows = page.locator("#batch tbody tr")
    expect(rows).to_have_count(3)
    expect(page.locator("#batch .lead")).to_have_text(
        "3 of 3 images (1 file of other types left out). Click an image to look at it."
    )
    names = sorted(rows.nth(row).locator("td").nth(1).inner_text() for row in range(3))
    assert names == [str(Path("photos", name)) for name in ("a/1.png", "a/2.png", "b/3.png")]
    wide = page.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth")
    assert wide, "the table scrolls by itself, not the page"
