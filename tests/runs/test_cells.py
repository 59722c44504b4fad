"""A grid of cells is resumed where it stopped, and refuses other settings than those that it was begun with."""

from __future__ import annotations

from pathlib import Path

import pytest

from vitrail.errors import ConfigError, DiskError
from vitrail.runs.cells import Cells


def test_a_cell_is_kept_and_a_damaged_one_is_to_be_computed_again(tmp_path: Path) -> None:
    cells = Cells(tmp_path, "study")
    assert cells.read("a.knn") is None
    cells.write("a.knn", {"figures": {"accuracy": 0.5}})
    assert Cells(tmp_path, "study").read("a.knn") == {"figures": {"accuracy": 0.5}}
    (tmp_path / "cells" / "a.knn.json").write_text('{"figures": ')
    assert cells.read("a.knn") is None


def test_the_same_settings_resume_and_others_are_refused_with_the_difference(tmp_path: Path) -> None:
    cells = Cells(tmp_path, "study")
    cells.begin({"k": 3, "weights": "abc"})
    cells.begin({"k": 3, "weights": "abc"})
    with pytest.raises(ConfigError) as refused:
        cells.begin({"k": 4, "weights": "def"})
    assert "holds a study with other settings" in refused.value.what
    assert refused.value.value == "k: 3 there, 4 asked\nweights: those of another model"
    assert "another --out" in refused.value.remedy


def test_a_folder_that_cannot_be_written_is_a_disk_error(tmp_path: Path) -> None:
    (tmp_path / "cells").write_text("a file")
    with pytest.raises(DiskError):
        Cells(tmp_path, "study").write("a", {})
