"""Random damage to the files that name the classes and list the images of masks: each is read as it stands, or refused."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from contextlib import suppress

import numpy as np
import pytest

from tests.data.sources.test_masks import BLACK, GREEN, RED, colours, describe, grey, put
from tests.slow import few_or_nightly
from vitrail.data.sources.open import open_data
from vitrail.data.sources.source import list_splits
from vitrail.errors import DataError
from vitrail.images.decode import BadImage

NAMES = ("meadow", "orchard", "hedgerow")
NUMBERS, COLOURS = grey(0, 1, 2), colours(BLACK, RED, GREEN)
SHOWN = ("0,0,0", "200,0,0", "0,200,0")
# a file, its content, and masks that it describes
TABLES = {
    "classes.txt": ("".join(f"{name}\n" for name in NAMES), NUMBERS),
    "masks/_classes.csv": (
        "Pixel Value, Class\n" + "".join(f"{row}, {name}\n" for row, name in enumerate(NAMES)),
        NUMBERS,
    ),
    "palette.csv": (
        "index,name,red,green,blue\n" + "".join(f"{row},{NAMES[row]},{SHOWN[row]}\n" for row in range(3)),
        COLOURS,
    ),
    "class_dict.csv": ("name,r,g,b\n" + "".join(f"{NAMES[row]},{SHOWN[row]}\n" for row in range(3)), COLOURS),
    "labelmap.txt": (
        "# label:color_rgb:parts:actions\n" + "".join(f"{NAMES[row]}:{SHOWN[row]}::\n" for row in range(3)),
        COLOURS,
    ),
    "label_colors.txt": ("".join(f"{SHOWN[row].replace(',', ' ')} {NAMES[row]}\n" for row in range(3)), COLOURS),
    "objectInfo150.txt": (
        "Idx\tStuff\tName\n" + "".join(f"{row + 1}\t0\t{name}\n" for row, name in enumerate(NAMES)),
        grey(1, 2, 3),
    ),
}


def change_line(text: str, chance: random.Random, change: Callable[[str], str]) -> str:
    lines = text.splitlines(keepends=True)
    row = chance.randrange(len(lines))
    return "".join([*lines[:row], change(lines[row]), *lines[row + 1 :]])


def replace_number(text: str, chance: random.Random) -> str:
    numbers = list(re.finditer(r"\d+", text))
    if not numbers:
        return text
    found = chance.choice(numbers)
    other = chance.choice(["nan", "inf", "-1", "256", "1e3", "0x1", "", "1.5", "9" * 50, "2.0", "x", "\u0663"])
    return text[: found.start()] + other + text[found.end() :]


def replace_character(text: str, chance: random.Random) -> str:
    place = chance.randrange(len(text))
    return text[:place] + chance.choice('\x00\ufeff,;:\t "\n\\{}é#') + text[place + 1 :]


MUTATIONS: tuple[Callable[[str, random.Random], str], ...] = (
    lambda text, chance: text[: chance.randrange(len(text))],
    lambda text, chance: change_line(text, chance, lambda line: ""),
    lambda text, chance: change_line(text, chance, lambda line: line * 2),
    lambda text, chance: change_line(text, chance, lambda line: re.split(r"[,:\t ]", line)[0] + "\n"),
    lambda text, chance: change_line(text, chance, lambda line: "\n" + line),
    lambda text, chance: change_line(text, chance, lambda line: line[::-1]),
    replace_number,
    replace_character,
)


@pytest.mark.parametrize("count", few_or_nightly(40, 400))
@pytest.mark.parametrize("file", TABLES)
def test_damaged_tables_of_classes_give_no_class_the_pixels_of_another(file, count, tmp_path):
    text, mask = TABLES[file]
    put(tmp_path / "images" / "a.jpg", None)
    put(tmp_path / "masks" / "a.png", mask)
    put(tmp_path / file, text)
    classes, counts = describe(tmp_path)
    assert classes == NAMES
    pixels = counts["train"]["images/a.jpg"]
    chance = random.Random(0)
    refused = 0
    for _ in range(count):
        mutated = chance.choice(MUTATIONS)(text, chance)
        put(tmp_path / file, mutated)
        try:
            classes, counts = describe(tmp_path)
        except DataError:
            refused += 1
            continue
        found = counts["train"]["images/a.jpg"]
        said = [note for note in open_data(tmp_path, validation=0).notes if "whose value no mask has" in note]
        for index, name in enumerate(classes):
            assert name in mutated or not mutated.strip() or name.isdecimal() or name.startswith("#"), (name, mutated)
            if name in NAMES:
                right = found.get(index) == pixels[NAMES.index(name)]
                assert right or said, mutated
    assert refused, "no mutation was refused"


@pytest.mark.parametrize("count", few_or_nightly(40, 400))
def test_damaged_lists_lose_no_image_in_silence(count, tmp_path):
    names = ("ant", "bee", "cow", "dog")
    for name in names:
        put(tmp_path / "JPEGImages" / f"{name}.jpg", None)
        put(tmp_path / "SegmentationClass" / f"{name}.png", NUMBERS)
    lists = {"train.txt": "ant\nbee\n", "val.txt": "cow\ndog\n"}
    chance = random.Random(0)
    for _ in range(count):
        for file, text in lists.items():
            put(tmp_path / "ImageSets" / "Segmentation" / file, text)
        file = chance.choice(list(lists))
        mutated = chance.choice(MUTATIONS)(lists[file], chance)
        put(tmp_path / "ImageSets" / "Segmentation" / file, mutated)
        try:
            splits = open_data(tmp_path, validation=0)
        except DataError:
            continue
        used = {key[len("JPEGImages/") : -len(".jpg")] for part in list_splits(splits).values() for key in part.keys}
        said = " ".join(splits.notes)
        assert all(name in used or name in said for name in names), (mutated, splits.notes)
        split = file.removesuffix(".txt")
        for line in lists[file].split():
            inside = getattr(splits, split) is not None and any(line in key for key in getattr(splits, split).keys)
            assert inside or line not in mutated.split() or said, mutated


def test_damaged_masks_are_refused_or_bad_images(tmp_path):
    for name in "ab":
        put(tmp_path / "images" / f"{name}.jpg", None)
        put(tmp_path / "masks" / f"{name}.png", NUMBERS)
    whole = (tmp_path / "masks" / "a.png").read_bytes()
    for place in np.linspace(0, len(whole) - 1, 40).astype(int).tolist():
        for damaged in (whole[:place], whole[:place] + bytes([whole[place] ^ 0x55]) + whole[place + 1 :]):
            put(tmp_path / "masks" / "a.png", damaged)
            with suppress(DataError, BadImage):
                describe(tmp_path)
