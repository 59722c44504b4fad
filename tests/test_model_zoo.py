"""The page of public weights agrees with the table that ``pretrained=True`` loads from, and names tests that exist."""

from __future__ import annotations

import re
from pathlib import Path

from tests.each_row import each_row
from vitrail.weights.public import SIZE, find_repository

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs/model-zoo.md").read_text()
ROW = re.compile(
    r"^\| `(timm/[^`]+)` \| `([^`]+)` \| `([^`]+)` \| (\d+) \| ([\d.]+) \| ([^|]+) \| [A-D, ]+ \|$", re.MULTILINE
)
ROWS = ROW.findall(PAGE)


@each_row("repository, model, tag, pixels, top1, licence", ROWS)
def test_a_row_says_what_the_table_of_public_weights_says(repository, model, tag, pixels, top1, licence):
    weights = find_repository(repository)
    assert weights is not None
    assert (weights.model, weights.tag, weights.licence) == (model, tag, licence)
    size = SIZE.search(repository)
    assert size is None or size[1] == pixels
    assert 70 < float(top1) < 90


FOUNDATIONS = re.findall(
    r"^\| `([a-z0-9-]+)`[^|]*\| [^|`]*`([^`]+)`[^|]*\| [^|]+\| ([^|]+) \| [FG] \|$", PAGE, re.MULTILINE
)


def test_rows_of_foundation_models_name_weights_of_their_model_and_their_licence():
    assert len(FOUNDATIONS) >= 10
    for model, repository, licence in FOUNDATIONS:
        weights = find_repository(repository)
        assert weights is not None and weights.model == model, repository
        assert weights.licence in licence
        assert weights.is_gated == (f"`{repository}` and others, **gated**" in PAGE)


def test_every_row_was_read():
    assert len(ROWS) == PAGE.count("\n| `timm/") > 50


def test_the_tests_that_the_page_names_exist():
    named = re.findall(r"`(tests/[^`]+)`", PAGE)
    assert named and all((ROOT / path).is_file() for path in named)
