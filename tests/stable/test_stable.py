"""What docs/stability.md promises: names and files of a released version work in every later one of the same major version."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path

import numpy as np
import pytest

from tests.stable.interface import FILE, list_interface
from tests.stable.written import ARCHIVES, MODELS, answer, list_kinds
from tests.test_packaging import VERSION
from vitrail.config.compose import compose_run
from vitrail.config.parse import flatten, read_stored
from vitrail.errors import VitrailError


def test_no_name_default_or_key_of_the_public_interface_is_gone():
    promised, present = set(FILE.read_text().splitlines()), set(list_interface())
    gone = "removed or changed, see docs/stability.md#deprecation"
    assert not sorted(promised - present), gone
    assert not sorted(present - promised), "new: python -m tests.stable.interface"


@pytest.mark.slow
def test_files_of_every_released_version_are_read_and_models_answer_the_same(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    kinds = list_kinds()
    today = {path: path.read_bytes() for kind in kinds for path in kind.files}
    settings = read_stored(Path("run/config.yaml"))
    archives = sorted(ARCHIVES.glob("*.tar.xz"))
    assert archives
    for archive in archives:
        for path in today:
            path.unlink(missing_ok=True)
        with tarfile.open(archive) as packed:
            packed.extractall(tmp_path, filter="data")
        outcomes: dict[str, list[str]] = {
            name: ["is no kind of file any more"] for name in json.loads(Path("kinds.json").read_text())
        }
        for kind in kinds:
            if kind.name in outcomes:
                outcomes[kind.name] = said = []
                try:
                    kind.read(said.append)
                except VitrailError as error:
                    said.append(str(error))
        assert {name: said for name, said in outcomes.items() if said} == {}, archive.name
        answers = np.load("answers.npz")
        for path in MODELS:
            np.testing.assert_allclose(
                answer(path), answers[path], rtol=1e-4, atol=1e-5, err_msg=f"{archive.name}: {path}"
            )
        compose_run(config=Path("run/config.yaml"))
        if archive.name.startswith(f"{VERSION}.tar"):
            assert flatten(read_stored(Path("run/config.yaml"))).keys() == flatten(settings).keys()
