"""Names of files that cannot be written to a table, a report or a terminal are refused before anything is done with them."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from vitrail.cli import run
from vitrail.data.sources.open import open_data
from vitrail.errors import DataError

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="other systems have no such names")


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    for name in ("ant", "bee"):
        (tmp_path / "photos" / name).mkdir(parents=True)
        for count in range(4):
            (tmp_path / "photos" / name / f"{count}.jpg").write_bytes(b"\xff\xd8\xff")
    return tmp_path / "photos"


@pytest.mark.parametrize(
    ("name", "words"),
    [
        (b"ant/3\xff.jpg", r"the image 'ant/3\\udcff\.jpg' is not UTF-8 text"),
        (b"ant/3\x1b[2J.jpg", r"the image 'ant/3\\x1b\[2J\.jpg' has control characters"),
        (b"ant/3\n.jpg", r"the image 'ant/3\\n\.jpg' has control characters"),
    ],
)
def test_a_file_is_named_and_ends_with_code_3(photos: Path, capsys, name: bytes, words: str) -> None:
    os.rename(photos / "ant" / "3.jpg", os.path.join(os.fsencode(photos), name))
    with pytest.raises(DataError, match=words):
        open_data(photos)
    assert run(["data", "check", str(photos)]) == 3
    assert "bug in vitrail" not in capsys.readouterr().err


@pytest.mark.parametrize("name", [b"b\xe9e", b"b\x1be"])
def test_so_is_a_folder(photos: Path, name: bytes) -> None:
    os.rename(photos / "bee", os.path.join(os.fsencode(photos), name))
    with pytest.raises(DataError, match=r"'b\\\w+e/0\.jpg' (is not UTF-8 text|has control characters)"):
        open_data(photos)


def test_names_in_any_language_are_taken(photos: Path) -> None:
    os.rename(photos / "bee", photos / "Wildbiene\u00a0\u871c\u8702 \U0001f41d")
    assert open_data(photos).classes == ("Wildbiene\u00a0\u871c\u8702 \U0001f41d", "ant")
