"""Results that travel between machines as one file."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.each_row import each_row
from tests.workflows.study.planned import POOL, fake_result, make_study
from vitrail.checksums import seal
from vitrail.errors import ConfigError, DataError
from vitrail.files import parse_sealed
from vitrail.workflows.study.exchange import add, pack
from vitrail.workflows.study.plan import make_plan, read_plan, write_plan
from vitrail.workflows.study.results import place_of, write_result


def begin(folder: Path, cells: range, **changes: object) -> list[str]:
    """A study with the results of some of its cells; their keys."""
    study = make_study(**changes)
    plan = make_plan(study, POOL, device="cpu", request="a", price=lambda cell: 1.0, budget=None)
    folder.mkdir(exist_ok=True)
    write_plan(folder, plan)
    keys = list(plan.grid.cells)
    for number in cells:
        write_result(folder, fake_result(plan.grid.cells[keys[number]]))
    return keys


def found(folder: Path) -> set[str]:
    return set(read_plan(folder)[0].results(folder))


def test_what_two_machines_computed_is_joined(tmp_path: Path) -> None:
    keys = begin(tmp_path / "here", range(4))
    begin(tmp_path / "there", range(2, 8))
    assert pack(tmp_path / "there", tmp_path / "cells.zip") == 6
    assert add(tmp_path / "here", tmp_path / "cells.zip", print) == 4
    assert found(tmp_path / "here") == set(keys[:8])
    assert add(tmp_path / "here", tmp_path / "cells.zip", print) == 0


def test_a_new_folder_becomes_the_study_of_the_file(tmp_path: Path) -> None:
    keys = begin(tmp_path / "there", range(3))
    pack(tmp_path / "there", tmp_path / "cells.zip")
    assert add(tmp_path / "new", tmp_path / "cells.zip", print) == 3
    assert found(tmp_path / "new") == set(keys[:3])
    assert read_plan(tmp_path / "new")[0].sha256 == read_plan(tmp_path / "there")[0].sha256


def test_a_result_with_other_predictions_is_said_and_does_not_replace_the_one_that_is_there(tmp_path: Path) -> None:
    (key, *_) = begin(tmp_path / "here", range(1))
    begin(tmp_path / "there", range(1))
    plan, _ = read_plan(tmp_path / "there")
    result = fake_result(plan.grid.cells[key])
    write_result(tmp_path / "there", replace(result, right=~result.right))
    pack(tmp_path / "there", tmp_path / "cells.zip")
    said: list[str] = []
    assert add(tmp_path / "here", tmp_path / "cells.zip", said.append) == 0
    assert "has other predictions" in said[0]
    assert np.array_equal(plan.results(tmp_path / "here")[key].right, result.right)


def test_the_results_of_another_study_are_refused(tmp_path: Path) -> None:
    begin(tmp_path / "here", range(1))
    begin(tmp_path / "there", range(1), name="other")
    pack(tmp_path / "there", tmp_path / "cells.zip")
    with pytest.raises(ConfigError, match="results of the study 'other'"):
        add(tmp_path / "here", tmp_path / "cells.zip", print)


def test_a_file_that_is_no_pack_or_was_damaged_is_refused(tmp_path: Path) -> None:
    begin(tmp_path / "here", range(2))
    (tmp_path / "cells.zip").write_bytes(b"no zip")
    with pytest.raises(DataError, match="cannot be read as results"):
        add(tmp_path / "here", tmp_path / "cells.zip", print)
    pack(tmp_path / "here", tmp_path / "cells.zip")
    with zipfile.ZipFile(tmp_path / "cells.zip") as packed, zipfile.ZipFile(tmp_path / "bad.zip", "w") as bad:
        for name in packed.namelist():
            bad.writestr(name, packed.read(name).replace(b'"accuracy": 0.5', b'"accuracy": 0.9'))
    with pytest.raises(DataError, match="does not match its checksum"):
        add(tmp_path / "here", tmp_path / "bad.zip", print)


@each_row("damage", [lambda pack: pack[:-1], lambda pack: pack + b"\0", lambda pack: pack[:9] + b"\1" + pack[10:]])
def test_a_damaged_pack_is_refused(damage: Callable[[bytes], bytes], tmp_path: Path) -> None:
    begin(tmp_path / "here", range(2))
    pack(tmp_path / "here", tmp_path / "cells.zip")
    (tmp_path / "cells.zip").write_bytes(damage((tmp_path / "cells.zip").read_bytes()))
    with pytest.raises(DataError, match="does not match its checksum"):
        add(tmp_path / "here", tmp_path / "cells.zip", print)


@each_row("place, value", [(8, b"\1"), (10, b"\x63")])
def test_an_archive_without_a_checksum_that_cannot_be_unpacked_is_refused(
    place: int, value: bytes, tmp_path: Path
) -> None:
    begin(tmp_path / "here", range(2))
    pack(tmp_path / "here", tmp_path / "cells.zip")
    content = (tmp_path / "cells.zip").read_bytes().partition(b"vitrail sha256")[0]
    at = content.index(b"PK\1\2") + place  # flags, or the method of compression, in the directory
    (tmp_path / "cells.zip").write_bytes(content[:at] + value + content[at + 1 :])
    with pytest.raises(DataError, match="cannot be read as results"):
        add(tmp_path / "here", tmp_path / "cells.zip", print)


@pytest.mark.parametrize("absolute", [False, True])
def test_a_key_that_is_a_path_is_refused_and_writes_nothing_outside(tmp_path: Path, absolute: bool) -> None:
    begin(tmp_path / "here", range(2))
    pack(tmp_path / "here", tmp_path / "cells.zip")
    victim = tmp_path / "victim" / "config.json"
    victim.parent.mkdir()
    victim.write_text("untouched")
    key = str(victim.with_suffix("")) if absolute else "../../victim/config"
    with zipfile.ZipFile(tmp_path / "cells.zip") as packed, zipfile.ZipFile(tmp_path / "evil.zip", "w") as evil:
        for name in packed.namelist():
            content = packed.read(name)
            evil.writestr(name, content)
        evil.writestr("cells/evil.json", json.dumps(seal({**parse_sealed(content), "key": key})))
    with pytest.raises(DataError, match="1 of its 3 cells are no results"):
        add(tmp_path / "here", tmp_path / "evil.zip", print)
    assert victim.read_text() == "untouched"
    with pytest.raises(ValueError, match="is not the key of a cell"):
        place_of(tmp_path / "here", key)


def test_a_folder_that_holds_no_study_is_not_packed(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"plan\.json is missing"):
        pack(tmp_path, tmp_path / "cells.zip")
