"""The page of public weights names models and tests that exist, and each model as vitrail itself translates its name."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from vitrail.models import MODELS
from vitrail.models.foreign_names import translate_model

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs/model-zoo.md").read_text()
ROW = re.compile(r"^\| `timm/([^`]+)` \| `([^`]+)` \| (\d+) \| ([\d.]+) \|", re.MULTILINE)
ROWS = ROW.findall(PAGE)


@pytest.mark.parametrize(("theirs", "ours", "pixels", "top1"), ROWS, ids=[row[0] for row in ROWS])
def test_a_model_is_named_as_it_is_here(theirs, ours, pixels, top1):
    assert translate_model(theirs) == ours
    assert ours in MODELS
    sizes = re.findall(r"_(\d{3})\b", theirs.partition(".")[0])
    assert not sizes or sizes[-1] == pixels
    assert 70 < float(top1) < 90


def test_every_row_was_read():
    assert len(ROWS) == PAGE.count("| `timm/") > 50


def test_the_tests_that_the_page_names_exist():
    named = re.findall(r"`(tests/[^`]+)`", PAGE)
    assert len(named) == 10
    assert all((ROOT / path).is_file() for path in named)
