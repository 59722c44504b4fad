"""Damage to any file that vitrail wrote is refused, named, or changes nothing: flipped bits, cuts and swapped bytes."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.slow import few_or_nightly
from tests.written_kinds import Kind, write_kinds
from vitrail.errors import VitrailError

WAYS = {"flip": 6, "cut": 1, "cut at a line": 2, "swap": 1}  # and how often each is chosen


def damage(content: bytes, way: str, chance: random.Random) -> tuple[bytes, int]:
    """The content with one random damage, and the place of it."""
    place = chance.randrange(len(content))
    if way == "cut at a line":
        ends = [0, *(number + 1 for number, byte in enumerate(content) if byte == 10)]
        place = chance.choice(ends[:-1] or ends)
    if way.startswith("cut"):
        return content[:place], place
    if way == "swap":
        return content[:place] + content[place : place + 2][::-1] + content[place + 2 :], place
    return content[:place] + bytes([content[place] ^ 1 << chance.randrange(8)]) + content[place + 1 :], place


def evaluate(kind: Kind, file: Path, expected: Any, said: list[str], chance: random.Random) -> str:
    """What becomes of one damage: "refused", "named", "harmless", or how it is silent or a fault of vitrail."""
    (way,) = chance.choices(list(WAYS), list(WAYS.values()))
    before, lines = {path: path.read_bytes() for path in kind.files}, []
    content, place = damage(before[file], way, chance)
    file.write_bytes(content)
    try:
        found = kind.read(lines.append)
    except VitrailError:
        return "refused"
    except Exception as error:
        return f"fault ({way}, byte {place}): {error!r:.200}"
    finally:
        for path, whole in before.items():  # what is damaged may have been repaired, or removed
            if not path.exists() or path.read_bytes() != whole:
                path.write_bytes(whole)
    if lines != said:
        return "named"
    return "harmless" if found == expected else f"silent ({way}, byte {place})"


def count_outcomes(damages: int, place: Path, *, exports: bool, seed: int = 0) -> dict[str, Counter[str]]:
    """The outcomes of about ``damages`` random damages, the same number in every file."""
    chance, kinds = random.Random(seed), list(write_kinds(place, exports=exports))
    each = -(-damages // sum(len(kind.files) for kind in kinds))
    outcomes = {}
    for kind in kinds:
        said: list[str] = []
        expected = kind.read(said.append)
        for file in kind.files:
            counts = Counter(evaluate(kind, file, expected, said, chance) for _ in range(each))
            outcomes[f"{kind.name}: {file.name}"] = counts
    return outcomes


@pytest.mark.parametrize("damages", few_or_nightly(80, 12_000))
def test_no_damage_is_silent_or_a_fault(damages, tmp_path) -> None:
    outcomes = count_outcomes(damages, tmp_path, exports=damages > 1000)
    assert sum(counts.total() for counts in outcomes.values()) >= damages
    sound = {"refused", "named", "harmless"}
    assert not {file: words for file, counts in outcomes.items() if (words := sorted(counts.keys() - sound))}
