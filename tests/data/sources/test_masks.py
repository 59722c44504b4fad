"""Data sets of masks as tools write them: which images, which classes, and which masks are refused."""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Mapping, Sequence
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageFilter

from tests.each_row import each_row
from vitrail.data.sources import mask_values
from vitrail.data.sources import open as open_module
from vitrail.data.sources.open import find_data, open_data
from vitrail.data.sources.source import list_splits
from vitrail.errors import DataError
from vitrail.images.masks import IGNORED
from vitrail.inference.inputs import find_inputs
from vitrail.inference.results import describe_inputs

DOCS = Path(__file__).parents[3] / "docs"
HEIGHT, WIDTH, OBJECT = 20, 24, 8 * 10
REST = HEIGHT * WIDTH - OBJECT
SPLIT_FOLDERS = ("images/train", "images/val", "masks/train", "masks/val")


def draw(background, thing, first_row=None) -> np.ndarray:
    """A mask (H, W) or (H, W, 3) of two values, with another one in the first row where that is given."""
    levels = np.zeros((HEIGHT, WIDTH, *np.shape(background)), np.int32)
    levels[:] = background
    levels[5:13, 6:16] = thing
    if first_row is not None:
        levels[0] = first_row
    return levels


def grey(*values) -> Image.Image:
    return Image.fromarray(draw(*values).astype(np.uint8))


def colours(*values) -> Image.Image:
    return Image.fromarray(draw(*values).astype(np.uint8), "RGB")


def equal_channels(*values) -> Image.Image:
    return grey(*values).convert("RGB")


def bits(*values) -> Image.Image:
    return Image.fromarray(draw(*values).astype(bool))


def palette(indices: Sequence[int], shown: Mapping[int, Sequence[int]]) -> Image.Image:
    image = grey(*indices).convert("P")
    image = Image.frombytes("P", image.size, grey(*indices).tobytes())
    image.putpalette([channel for index in range(256) for channel in shown.get(index, (0, 0, 0))])
    return image


def wide(*values, kind=np.uint16) -> Image.Image:
    return Image.fromarray(draw(*values).astype(kind))


def smooth(image: Image.Image) -> Image.Image:
    return image.filter(ImageFilter.GaussianBlur(1.2))


def enlarge(image: Image.Image) -> Image.Image:
    """Halved, and enlarged again with interpolation."""
    size = image.size
    return image.resize((size[0] // 2, size[1] // 2), Image.Resampling.NEAREST).resize(size, Image.Resampling.BILINEAR)


def through_jpeg(image: Image.Image) -> Image.Image:
    stream = BytesIO()
    image.save(stream, "JPEG", quality=60)
    return Image.open(BytesIO(stream.getvalue()))


def lines() -> Image.Image:
    """Classes of which some are lines of one pixel, as poles and cables are."""
    levels = draw(0, 1)
    levels[::7], levels[:, 3], levels[:, 20] = 2, 3, 4
    levels[15:, :12], levels[15:, 12:] = 5, 6
    return Image.fromarray(levels.astype(np.uint8))


def put(path: Path, content: Image.Image | bytes | str | None) -> None:
    """Writes a mask, a file of text, or a picture for None."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if isinstance(content, str | bytes):
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return
    image = content or Image.new("RGB", (WIDTH, HEIGHT), (len(list(path.parent.iterdir())) * 9 % 256, 80, 7))
    image.save(path)


def describe(root: Path, **options) -> tuple[tuple[str, ...], dict[str, dict[str, dict[int, int]]]]:
    """The classes of data, and the pixels of each class in the images of each split."""
    splits = open_data(root, task="segmentation", validation=0, **options)
    counts = {
        split: {
            key: {index: count for index, count in enumerate(np.bincount(source.targets.of(row).reshape(-1))) if count}
            for row, key in enumerate(source.keys)
        }
        for split, source in list_splits(splits).items()
    }
    return splits.classes, counts


def refusal(root: Path) -> str:
    with pytest.raises(DataError) as error:
        open_data(root, task="segmentation")
    return f"{error.value.what}; {error.value.remedy}"


TWO = {0: REST, 1: OBJECT}
LINES = {0: 194, 1: 70, 2: 66, 3: 15, 4: 15, 5: 60, 6: 60}
VOID_ROW = {0: REST - WIDTH, 1: OBJECT, IGNORED: WIDTH}
RED_GREEN = "index,name,red,green,blue\n0,soil,0,0,0\n1,leaf,200,0,0\n2,fruit,0,200,0\n"
RED, GREEN, BLACK = (200, 0, 0), (0, 200, 0), (0, 0, 0)
BINARY = ("background", "foreground")

# masks, files beside their folder, and the classes with the pixels of each mask
MEANINGS: dict[str, tuple[list[Image.Image], dict[str, str | bytes], tuple[tuple[str, ...], list[dict[int, int]]]]] = {
    "1 bit": ([bits(0, 1), bits(0, 1)], {}, (BINARY, [TWO, TWO])),
    "1 bit among 0 and 1": ([bits(0, 1), grey(0, 1)], {}, (("0", "1"), [TWO, TWO])),
    "1 bit among 0 and 255": ([bits(0, 1), grey(0, 255)], {}, (BINARY, [TWO, TWO])),
    "1 bit among three classes": (
        [bits(0, 1), grey(0, 1, 2)],
        {"classes.txt": "a\nb\nc\n"},
        (("a", "b", "c"), [TWO, {0: REST - WIDTH, 1: OBJECT, 2: WIDTH}]),
    ),
    "16 bits with 65535": ([wide(0, 1, 65_535)], {}, (("0", "1"), [VOID_ROW])),
    "32 bits with -1": ([wide(0, 1, -1, kind=np.int32)], {}, (("0", "1"), [VOID_ROW])),
    "grey and alpha": ([grey(0, 1, 255).convert("LA")], {}, (("0", "1"), [VOID_ROW])),
    "equal channels": ([equal_channels(0, 1, 255)], {"classes.txt": "a\nb\n"}, (("a", "b"), [VOID_ROW])),
    "equal channels among grey": ([equal_channels(0, 1, 255), grey(0, 1)], {}, (("0", "1"), [VOID_ROW, TWO])),
    "black and white": ([colours((0,) * 3, (255,) * 3)], {"classes.txt": "a\nb\n"}, (("a", "b"), [TWO])),
    "black and white in a table of colours": (
        [colours((0,) * 3, (255,) * 3)],
        {"palette.csv": "name,r,g,b\nb,255,255,255\na,0,0,0\n"},
        (("b", "a"), [{0: OBJECT, 1: REST}]),
    ),
    "255 that the table names": ([grey(0, 255)], {"palette.csv": "index,name\n0,a\n255,b\n"}, (("a", "b"), [TWO])),
    "255 in a table that begins with the foreground": (
        [grey(0, 255)],
        {"palette.csv": "index,name\n1,b\n0,a\n"},
        (("a", "b"), [TWO]),
    ),
    "255 that the table calls void": (
        [grey(0, 255)],
        {"palette.csv": "index,name\n0,a\n255,void\n"},
        (("a",), [{0: REST, IGNORED: OBJECT}]),
    ),
    "a void class": ([grey(0, 1, 2)], {"classes.txt": "a\nb\nvoid\n"}, (("a", "b"), [VOID_ROW])),
    "lines of one pixel": ([lines()], {}, (tuple("0123456"), [LINES])),
    "a palette among colours": (
        [colours(BLACK, RED), palette((0, 7), {7: RED})],
        {"palette.csv": RED_GREEN},
        (("soil", "leaf", "fruit"), [TWO, TWO]),
    ),
    "a black grey mask among colours": (
        [colours(BLACK, RED), grey(0, 0)],
        {},
        (("#000000", "#c80000"), [TWO, {0: REST + OBJECT}]),
    ),
    "indices of a palette": (
        [palette((0, 2), {2: (9, 9, 9)})],
        {"palette.csv": RED_GREEN},
        (("soil", "leaf", "fruit"), [{0: REST, 2: OBJECT}]),
    ),
    "palettes in different orders that a table with colours covers": (
        [palette((0, 1), {1: RED, 2: GREEN}), palette((0, 1, 2), {1: GREEN, 2: RED})],
        {"palette.csv": RED_GREEN},
        (("soil", "leaf", "fruit"), [TWO, {0: REST - WIDTH, 2: OBJECT, 1: WIDTH}]),
    ),
    "255 of a palette that is shown black": (
        [palette((0, 1, 255), {1: RED})],
        {"palette.csv": RED_GREEN},
        (("soil", "leaf", "fruit"), [VOID_ROW]),
    ),
    "255 of a palette that is shown as another class": (
        [palette((0, 1, 255), {1: RED, 255: GREEN})],
        {"palette.csv": RED_GREEN},
        (("soil", "leaf", "fruit"), [VOID_ROW]),
    ),
    "a palette without colours": (
        [palette((0, 2), {})],
        {"palette.csv": RED_GREEN},
        (("soil", "leaf", "fruit"), [{0: REST, 2: OBJECT}]),
    ),
    "255 of a palette that is shown as the background": (
        [palette((0, 1, 255), {1: RED})],
        {"labelmap.txt": "background:0,0,0::\nleaf:200,0,0::\n"},
        (("background", "leaf"), [VOID_ROW]),
    ),
    "equal channels that are indices and colours": (
        [equal_channels(0, 1)],
        {"palette.csv": "index,name,red,green,blue\n0,b,1,1,1\n1,a,0,0,0\n"},
        (("b", "a"), [{1: REST, 0: OBJECT}]),
    ),
    "CVAT's labelmap.txt": (
        [colours(BLACK, RED, (224, 224, 192))],
        {"labelmap.txt": "# label:color_rgb:parts:actions\nbackground:0,0,0::\nleaf:200,0,0::\nvoid:224,224,192::\n"},
        (("background", "leaf"), [VOID_ROW]),
    ),
    "labelmap.txt in another order than a palette": (
        [palette((0, 1), {1: RED})],
        {"labelmap.txt": "fruit:0,200,0::\nleaf:200,0,0::\nbackground:0,0,0::\n"},
        (("fruit", "leaf", "background"), [{2: REST, 1: OBJECT}]),
    ),
    "CamVid's label_colors.txt": (
        [colours(BLACK, RED, GREEN)],
        {"label_colors.txt": "0 0 0\tVoid\n200 0 0\tTraffic light\n0 200 0\tsky\n"},
        (("Traffic light", "sky"), [{IGNORED: REST - WIDTH, 0: OBJECT, 1: WIDTH}]),
    ),
    "class_dict.csv": (
        [colours(BLACK, RED)],
        {"class_dict.csv": "name,r,g,b\nleaf, 200, 0, 0\nsoil, 0, 0, 0\n"},
        (("leaf", "soil"), [{1: REST, 0: OBJECT}]),
    ),
    "UTF-16 with blank lines": (
        [grey(0, 1)],
        {"codes.txt": "\nBoden \r\n\r\nBlätter\r\n\r\n".encode("utf-16")},
        (("Boden", "Blätter"), [TWO]),
    ),
    "semicolons and numbers with points": (
        [grey(3, 4)],
        {"classes.csv": "\ufeffName;Index\na;3.0\nb;4.0\n\n"},
        (("a", "b"), [TWO]),
    ),
    "ADE20K's objectInfo150.txt": (
        [grey(0, 2)],
        {
            "objectInfo150.txt": "Idx\tRatio\tTrain\tVal\tStuff\tName\n1\t1\t9\t9\t1\twall\n2\t1\t9\t9\t1\tbuilding, edifice\n"
        },
        (("wall", "building, edifice"), [{IGNORED: REST, 1: OBJECT}]),
    ),
}

# masks, files beside their folder, and what is said of them
REFUSED: dict[str, tuple[list[Image.Image], dict[str, str | bytes], str]] = {
    "blurred": ([smooth(grey(0, 255))], {}, "look resized or smoothed: "),
    "enlarged": ([enlarge(grey(0, 255)), enlarge(grey(255, 0))], {}, "without interpolation (nearest neighbour)"),
    "blurred, with names": ([smooth(grey(0, 255))], {"classes.txt": "a\nb\n"}, "look resized or smoothed: "),
    "blurred channels": ([smooth(equal_channels(0, 255))], {}, "look resized or smoothed: "),
    "blurred colours": ([smooth(colours(BLACK, RED))], {}, "look resized or smoothed: "),
    "compressed": ([through_jpeg(grey(0, 255)), through_jpeg(grey(0, 255))], {}, "look resized or smoothed: "),
    "0 and 255, 0 and 1": (
        [grey(0, 255), grey(0, 1)],
        {},
        "some masks have only 0 and 255 (1 mask, e.g. masks/0.png), and others have no 255 (1 mask, e.g. masks/1.png); "
        "use the same values in all masks; "
        "if 255 is no class, write a palette.csv with the columns index,name and the row 255,void",
    ),
    "0 and 255, 0 and 1 and 2": ([grey(0, 255), grey(0, 1, 2)], {}, "use the same values in all masks"),
    "0, 128 and 255": (
        [grey(0, 128, 255), grey(0, 255)],
        {},
        "have the grey levels 0, 128, 255: 255 may be a class or none",
    ),
    "one name for two values": (
        [grey(0, 255)],
        {"classes.txt": "polyp\n"},
        "classes.txt names 1 class; name the background and",
    ),
    "three names for two values": (
        [grey(0, 255)],
        {"classes.txt": "a\nb\nc\n"},
        "classes.txt names 3 classes; name the",
    ),
    "1 bit among 0 and 2": (
        [bits(0, 1), grey(0, 2)],
        {},
        "several modes: bits in 1 mask, e.g. masks/0.png; grey in 1 mask",
    ),
    "colours among numbers": (
        [colours(BLACK, RED), grey(0, 3)],
        {},
        "colours in 1 mask, e.g. masks/0.png; grey in 1 mask, e.g. masks/1",
    ),
    "a palette that contradicts the table": (
        [palette((0, 1), {1: GREEN})],
        {"palette.csv": RED_GREEN},
        "the palette of masks, e.g. masks/0.png, has at 1 the colour of 'fruit'; correct the index or the colour",
    ),
    "palettes in different orders": (
        [palette((0, 1), {1: RED, 2: GREEN}), palette((0, 1, 2), {1: GREEN, 2: RED})],
        {"classes.txt": "a\nb\nc\n"},
        "have palettes with different orders of colours, e.g. masks/0.png, masks/",
    ),
    "equal channels that a table of colours does not have": (
        [equal_channels(10, 200)],
        {"palette.csv": "index,name,red,green,blue\n0,a,10,10,10\n1,b,9,9,9\n"},
        "have the colours (200, 200, 200) (1 mask, e.g. masks/0.png), which palette.csv does not name; add them to the table",
    ),
    "a list of other images": (
        [grey(0, 1)],
        {"ImageSets/Segmentation/train.txt": "0\n", "ImageSets/Segmentation/val.txt": "1\n2\n"},
        "none of the 2 images in the list of val is in ",
    ),
    "numbers of objects": (
        [wide(0, 26_001)],
        {},
        "the mask masks/0.png cannot be used: the mask has the values 26001; save classes",
    ),
    "a value twice": (
        [grey(0, 1)],
        {"palette.csv": "index,name\n0,a\n0,b\n1,c\n"},
        "palette.csv has the value 0 twice",
    ),
    "a name twice": ([grey(0, 1)], {"classes.txt": "a\na\n"}, "classes.txt has the name 'a' twice"),
    "a table without names": ([grey(0, 1)], {"palette.csv": "index,meaning\n0,a\n"}, "its columns are index, meaning"),
}


def write_data(root: Path, masks: list[Image.Image], files: Mapping[str, str | bytes]) -> Path:
    for number, mask in enumerate(masks):
        put(root / "images" / f"{number}.jpg", None)
        put(root / "masks" / f"{number}.tif" if mask.mode == "I" else root / "masks" / f"{number}.png", mask)
    for name, content in files.items():
        put(root / name, content)
    return root


@each_row("name", MEANINGS)
def test_values_of_masks_mean_the_classes_that_are_meant(name, tmp_path):
    masks, files, (classes, counts) = MEANINGS[name]
    found, splits = describe(write_data(tmp_path, masks, files))
    assert found == classes
    assert list(splits["train"].values()) == counts


@each_row("name", REFUSED)
def test_masks_that_may_mean_several_things_are_refused(name, tmp_path):
    masks, files, message = REFUSED[name]
    assert message in refusal(write_data(tmp_path, masks, files))


M, VOC_LISTS = grey(0, 1), "ImageSets/Segmentation"
NFC, NFD = (unicodedata.normalize(form, "blätter") for form in ("NFC", "NFD"))
CITY = "leftImg8bit/{0}/ulm/ulm_0_leftImg8bit.png", "gtFine/{0}/ulm/ulm_0_gtFine_{1}.png"

# files by path, with None for a picture; and the images of each split
LAYOUTS: dict[str, tuple[dict[str, Image.Image | str | None], dict[str, list[str]]]] = {
    "Pascal VOC: devkit": (
        {
            **{f"JPEGImages/{name}.jpg": None for name in "abcd"},
            **{f"SegmentationClass/{name}.png": M for name in "abc"},
            **{f"SegmentationObject/{name}.png": M for name in "abc"},
            **{
                f"Annotations/{name}.xml": "<annotation><object><name>x</name></object></annotation>" for name in "abcd"
            },
            "ImageSets/Main/train.txt": "d\n",
            **{
                f"{VOC_LISTS}/{split}.txt": names
                for split, names in (("train", "a\n"), ("val", "c"), ("trainval", "a\nc\n"))
            },
        },
        {"train": ["JPEGImages/a.jpg"], "val": ["JPEGImages/c.jpg"]},
    ),
    "Pascal VOC: trainval and test": (
        {
            **{f"JPEGImages/{name}.jpg": None for name in "abc"},
            **{f"SegmentationClass/{name}.png": M for name in "abc"},
            f"{VOC_LISTS}/trainval.txt": "a\nb\n",
            f"{VOC_LISTS}/test.txt": "c\n",
        },
        {"train": ["JPEGImages/a.jpg", "JPEGImages/b.jpg"], "test": ["JPEGImages/c.jpg"]},
    ),
    "CVAT: Segmentation mask 1.1": (
        {
            "JPEGImages/sub/a.jpg": None,
            "JPEGImages/b.jpg": None,
            **{f"SegmentationClass/{name}.png": colours(BLACK, RED) for name in ("sub/a", "b")},
            "labelmap.txt": "# label:color_rgb:parts:actions\nbackground:0,0,0::\nleaf:200,0,0::\n",
            f"{VOC_LISTS}/default.txt": "sub/a\nb\n",
        },
        {"train": ["JPEGImages/sub/a.jpg", "JPEGImages/b.jpg"]},
    ),
    "CVAT: CamVid 1.0": (
        {
            "default/a.png": None,
            "defaultannot/a.png": colours(BLACK, RED),
            "label_colors.txt": "0 0 0 background\n200 0 0 leaf\n",
            "default.txt": "/default/a.png /defaultannot/a.png\n",
        },
        {"train": ["default/a.png"]},
    ),
    "Roboflow: Semantic Segmentation Masks": (
        {
            **{
                f"{split}/{name}_jpg.rf.0a1b.jpg": None
                for split, name in (("train", "a"), ("train", "b"), ("valid", "c"))
            },
            **{
                f"{split}/{name}_jpg.rf.0a1b_mask.png": M
                for split, name in (("train", "a"), ("train", "b"), ("valid", "c"))
            },
            **{f"{split}/_classes.csv": "Pixel Value, Class\n0, background\n1, leaf\n" for split in ("train", "valid")},
        },
        {"train": ["train/a_jpg.rf.0a1b.jpg", "train/b_jpg.rf.0a1b.jpg"], "val": ["valid/c_jpg.rf.0a1b.jpg"]},
    ),
    "Cityscapes: leftImg8bit and gtFine": (
        {
            **{CITY[0].format(split): None for split in ("train", "val")},
            **{
                CITY[1].format(split, kind): colours(BLACK, RED) if kind == "color" else grey(7, 26)
                for split in ("train", "val")
                for kind in ("labelIds", "color", "instanceIds", "labelTrainIds")
            },
        },
        {split: [CITY[0].format(split)] for split in ("train", "val")},
    ),
    "ADE20K: SceneParsing": (
        {
            **{f"images/{split}/ADE_{number}.jpg": None for number, split in enumerate(("training", "validation"))},
            **{f"annotations/{split}/ADE_{number}.png": M for number, split in enumerate(("training", "validation"))},
        },
        {"train": ["images/training/ADE_0.jpg"], "val": ["images/validation/ADE_1.jpg"]},
    ),
    "labelme: labelme2voc": (
        {
            "JPEGImages/a.jpg": None,
            "SegmentationClass/a.npy": "",
            "SegmentationClassPNG/a.png": palette((0, 1), {1: RED}),
            "SegmentationClassVisualization/a.jpg": None,
            "class_names.txt": "_background_\nleaf\n",
        },
        {"train": ["JPEGImages/a.jpg"]},
    ),
    "Kaggle: train and train_labels": (
        {
            **{f"{split}/{number}.png": None for number, split in enumerate(("train", "val", "test"))},
            **{
                f"{split}_labels/{number}_L.png": colours(BLACK, RED)
                for number, split in enumerate(("train", "val", "test"))
            },
            "class_dict.csv": "name,r,g,b\nsoil,0,0,0\nleaf,200,0,0\n",
        },
        {"train": ["train/0.png"], "val": ["val/1.png"], "test": ["test/2.png"]},
    ),
    "PaddleSeg: train.txt with two columns": (
        {
            **{f"images/{name}.jpg": None for name in "ab"},
            **{f"labels/{name}.png": M for name in "ab"},
            "train.txt": "\ufeffimages\\b.jpg labels\\a.png\r\n\r\n",
            "val.txt": "images/a.jpg labels/b.png \r\n",
        },
        {"train": ["images/b.jpg"], "val": ["images/a.jpg"]},
    ),
    "masks of all splits in one folder": (
        {"images/train/a.jpg": None, "images/val/b.jpg": None, "masks/a.png": M, "masks/b.png": M},
        {"train": ["images/train/a.jpg"], "val": ["images/val/b.jpg"]},
    ),
    "masks of subfolders in one folder": (
        {
            "images/ulm/a.jpg": None,
            "images/bonn/my b.jpg": None,
            "masks/a.png": M,
            "masks/my b.png": M,
            "train.txt": "my b\na\n",
        },
        {"train": ["images/bonn/my b.jpg", "images/ulm/a.jpg"]},
    ),
    "masks beside pictures without splits": (
        {"a.jpg": None, "a_mask.png": M, "b.JPG": None, "b_mask.png": M},
        {"train": ["a.jpg", "b.JPG"]},
    ),
    "lists beside masks": (
        {
            **{f"images/{name}.jpg": None for name in "ab"},
            **{f"annotations/trimaps/{name}.png": M for name in "ab"},
            "annotations/trainval.txt": "b 1 1 1\n",
            "annotations/test.txt": "a 1 1 1\n",
        },
        {"train": ["images/b.jpg"], "test": ["images/a.jpg"]},
    ),
    "COCO-Stuff: pixel maps": (
        {
            "images/train2017/a.jpg": None,
            "annotations/train2017/a.png": M,
            "images/val2017/b.jpg": None,
            "annotations/val2017/b.png": M,
        },
        {"train": ["images/train2017/a.jpg"], "val": ["images/val2017/b.jpg"]},
    ),
    "names with an extension and with a word after them": (
        {"images/a.jpg": None, "masks/a.jpg.png": M, "images/b.jpg": None, "masks/b_segmentation.png": M},
        {"train": ["images/a.jpg", "images/b.jpg"]},
    ),
    "accents in two forms": (
        {f"images/{NFC}.jpg": None, f"masks/{NFD}.png": M, "train.txt": f"{NFD}\n"},
        {"train": [f"images/{NFC}.jpg"]},
    ),
}


def write_layout(root: Path, files: Mapping[str, Image.Image | str | None]) -> Path:
    for path, content in files.items():
        put(root / path, content)
    return root


@each_row("name", LAYOUTS)
def test_masks_of_tools_open_as_they_are(name, tmp_path):
    files, expected = LAYOUTS[name]
    _, splits = describe(write_layout(tmp_path, files))
    assert {split: list(images) for split, images in splits.items()} == expected
    assert all(OBJECT in counts.values() for images in splits.values() for counts in images.values())


def test_every_export_of_masks_in_the_docs_is_a_row_of_this_table():
    cells = [
        line.strip("| \n").split(" | ")
        for line in (DOCS / "dense.md").read_text().splitlines()
        if line.startswith("| ")
    ]
    exports = {
        f"{tool}: {export}"
        for tool, export, read_as, *_ in filter(lambda row: len(row) > 2, cells)
        if read_as.startswith("masks")
    }
    assert exports == {name for name in LAYOUTS if ": " in name and "trainval" not in name}


# files more than those of the layout, and the note on them
NOTES: dict[str, tuple[str, dict[str, Image.Image | str | None], str]] = {
    "no list": ("Pascal VOC: devkit", {}, "train: images in no list, left out: 2 (JPEGImages/b.jpg, JPEGImages/d.jpg)"),
    "two lists": (
        "PaddleSeg: train.txt with two columns",
        {"test.txt": "b\n"},
        "train: images in the lists of several splits: 1 (images/b.jpg)",
    ),
    "a line without an image": (
        "PaddleSeg: train.txt with two columns",
        {"train.txt": "b\nc\n"},
        "train: lines of lists that name no image: 1 (c)",
    ),
    "an image without a mask": (
        "ADE20K: SceneParsing",
        {"images/training/x.jpg": None},
        "train: images without a mask, left out: 1 (images/training/x.jpg)",
    ),
    "a mask without an image": (
        "ADE20K: SceneParsing",
        {"annotations/training/x.png": M},
        "train: masks of no image, not used: 1 (annotations/training/x.png)",
    ),
    "an image in no split": (
        "ADE20K: SceneParsing",
        {"images/x.jpg": None},
        "train: images in no folder of a split, left out: 1 (images/x.jpg)",
    ),
    "a split without masks": (
        "ADE20K: SceneParsing",
        {"images/testing/x.jpg": None},
        "train: images of test, which has no masks, left out: 1 (images/testing/x.jpg)",
    ),
    "a folder of a split without masks": (
        "Roboflow: Semantic Segmentation Masks",
        {"test/images/x.jpg": None},
        "train: images of test, which has no masks, left out: 1 (test/images/x.jpg)",
    ),
    "a name too many": (
        "ADE20K: SceneParsing",
        {"classes.txt": "a\nb\nc\n"},
        "train: names in classes.txt whose value no mask has: 1 of 3 (c)",
    ),
    "names that are not read": (
        "ADE20K: SceneParsing",
        {"class_names.json": "{}"},
        "train: names of classes are not read from class_names.json; give a classes.txt or palette.csv",
    ),
    "a mask that is no image": (
        "Pascal VOC: trainval and test",
        {"SegmentationClass/a.png": "no"},
        "train: masks that cannot be used: 1 mask, e.g. SegmentationClass/a.png: the mask: not a JPEG",
    ),
    "a void class": (
        "ADE20K: SceneParsing",
        {"classes.txt": "void\nb\n"},
        "train: 'void' in classes.txt is taken as no class: its pixels are ignored",
    ),
}


@each_row("name", NOTES)
def test_what_is_not_used_of_masks_is_said_with_a_count_and_examples(name, tmp_path):
    layout, more, note = NOTES[name]
    root = write_layout(tmp_path, LAYOUTS[layout][0] | more)
    splits = open_data(root, task="segmentation", validation=0, max_bad=0.5)
    assert any(found.startswith(note) for found in splits.notes), splits.notes


def test_masks_are_taken_before_outlines_for_segmentation_and_this_is_said(tmp_path):
    write_layout(tmp_path, LAYOUTS["masks of all splits in one folder"][0])
    box = {"id": 1, "image_id": 1, "category_id": 1, "bbox": [0, 0, 4, 4], "segmentation": [[0, 0, 4, 0, 4, 4]]}
    image = {"id": 1, "file_name": "train/a.jpg", "width": WIDTH, "height": HEIGHT}
    content = {"images": [image], "annotations": [box], "categories": [{"id": 1, "name": "leaf"}]}
    put(tmp_path / "annotations" / "instances.json", json.dumps(content))
    assert describe(tmp_path)[0] == ("0", "1")
    assert "not used" in open_data(tmp_path, task="segmentation").layout
    assert open_data(tmp_path, task="detection").classes == ("leaf",)


@pytest.mark.parametrize("task", [None, "segmentation"])
def test_what_was_found_is_opened_without_a_second_search(task, tmp_path, monkeypatch):
    write_layout(tmp_path, LAYOUTS["masks of all splits in one folder"][0])
    found = find_data(tmp_path)
    search = lambda path: pytest.fail(f"{path} is searched again")  # noqa: E731
    monkeypatch.setattr(open_module, "find_masks", search)
    monkeypatch.setattr(open_module, "FORMATS_OF_FOLDERS", (search,))
    assert found.task == "segmentation" and open_data(found, task=task, validation=0).classes == ("0", "1")


def test_different_names_in_two_splits_are_refused(tmp_path):
    write_layout(tmp_path, LAYOUTS["Roboflow: Semantic Segmentation Masks"][0])
    put(tmp_path / "valid" / "_classes.csv", "Pixel Value, Class\n0, leaf\n1, background\n")
    assert "have different names of classes: " in refusal(tmp_path)
    (tmp_path / "valid" / "_classes.csv").unlink()
    assert "_classes.csv and none; give all folders the same names" in refusal(tmp_path)


def test_train_ids_of_cityscapes_are_its_19_classes_where_there_are_no_label_ids(tmp_path):
    write_layout(tmp_path, {CITY[0].format("train"): None, CITY[1].format("train", "labelTrainIds"): grey(0, 13, 255)})
    classes, counts = describe(tmp_path)
    assert len(classes) == 19 and (classes[0], classes[13]) == ("road", "car")
    assert counts["train"][CITY[0].format("train")] == {0: REST - WIDTH, 13: OBJECT, IGNORED: WIDTH}


def test_two_folders_of_one_split_are_refused(tmp_path):
    write_layout(tmp_path, LAYOUTS["Roboflow: Semantic Segmentation Masks"][0])
    (tmp_path / "train").rename(tmp_path / "val")
    assert "has more than one val folder: val, valid; keep one of them" in refusal(tmp_path)


def test_values_are_measured_with_their_pixels_inside_of_areas(tmp_path):
    write_data(tmp_path, [bits(0, 1), lines(), palette((0, 3), {3: RED})], {})
    levels = mask_values.measure_masks(tmp_path, [f"masks/{number}.png" for number in range(3)]).levels
    found = {(level.kind, level.number): level for level in levels}
    assert [number for kind, number in found if kind == "bits"] == [0, 1]
    assert found["palette", 3].colour == RED and found["palette", 3].pixels == OBJECT
    assert (found["grey", 3].pixels, found["grey", 3].inner) == (15, 0)
    assert found["grey", 6].inner == 3 * 10


def test_lists_with_two_columns_say_which_mask_an_image_has(tmp_path):
    files = {"images/a.jpg": None, "images/b.jpg": None, "labels/b.png": grey(0, 3), "labels/c.png": grey(0, 5)}
    write_layout(tmp_path, files | {"train.txt": "images/a.jpg labels/b.png\nimages/b.jpg,labels/c.png\n"})
    classes, counts = describe(tmp_path)
    assert classes == ("0", "3", "5")
    assert counts["train"] == {"images/a.jpg": {0: REST, 1: OBJECT}, "images/b.jpg": {0: REST, 2: OBJECT}}
    assert open_data(tmp_path, validation=0).notes == ()


def test_many_masks_that_cannot_be_read_stop_the_run(tmp_path):
    write_data(tmp_path, [grey(0, 1)] * 4, {"masks/2.png": "no image"})
    message = refusal(tmp_path)
    assert message.startswith(
        "1 of 4 masks cannot be read, more than 1 %; the first: masks/2.png: the mask: not a JPEG"
    )
    assert "masks that cannot be used: 1 mask, e.g. masks/2.png" in open_data(tmp_path, max_bad=0.3).notes[0]


def test_masks_of_scattered_pixels_are_not_taken_for_smoothed_ones(tmp_path):
    levels = np.random.default_rng(0).integers(1, 40, (HEIGHT, WIDTH), np.uint8)
    levels[:4], levels[-4:] = 0, 40
    write_data(tmp_path, [Image.fromarray(levels)], {})
    assert len(open_data(tmp_path, validation=0).classes) == 41


def test_a_value_that_one_of_many_masks_has_is_a_class(tmp_path):
    write_data(tmp_path, [grey(0, 7) if number == 3 else grey(0, 1) for number in range(150)], {})
    splits = open_data(tmp_path, validation=0)
    assert splits.classes == ("0", "1", "7")
    assert splits.notes == (
        f"train: values that a single mask has, taken as classes: 7 (masks/3.png, {OBJECT:,} pixels)",
    )


def test_values_of_masks_are_read_once_until_a_mask_changes(tmp_path, monkeypatch):
    monkeypatch.setenv("VITRAIL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(mask_values, "KEPT_FROM", 1)
    examine, read = mask_values._examine, []
    monkeypatch.setattr(mask_values, "_examine", lambda files, row: read.append(row) or examine(files, row))
    write_data(tmp_path, [grey(0, 1), grey(0, 1, 255), bits(0, 1), colours((0,) * 3, (1,) * 3)], {})
    first = describe(tmp_path)
    assert describe(tmp_path) == first and sorted(read) == [0, 1, 2, 3]
    put(tmp_path / "masks" / "1.png", grey(0, 4, 255))
    assert describe(tmp_path)[0] == ("0", "1", "4") and len(read) == 8
    (kept,) = (tmp_path / "cache" / "masks").iterdir()
    kept.write_text(kept.read_text().replace('"number"', "x")[:-20])
    assert describe(tmp_path)[0] == ("0", "1", "4") and len(read) == 12


def test_images_of_a_folder_inside_another_one_are_inputs_once(tmp_path):
    write_layout(tmp_path, {"a.jpg": None, "val/b.jpg": None, "val/b_mask.png": M})
    for given in (["", "val"], ["val", ""], ["", "", "val"]):
        inputs = find_inputs([str(tmp_path / name) for name in given])
        assert sorted(Path(key).name for key in inputs.source.keys) == ["a.jpg", "b.jpg"]
        assert inputs.masks == 1


def test_masks_of_pictures_are_no_inputs_of_predictions(tmp_path):
    write_layout(tmp_path, LAYOUTS["Roboflow: Semantic Segmentation Masks"][0])
    put(tmp_path / "train" / "alone_mask.png", None)
    inputs = find_inputs([str(tmp_path)])
    assert [Path(key).name for key in inputs.source.keys] == [
        "a_jpg.rf.0a1b.jpg",
        "alone_mask.png",
        "b_jpg.rf.0a1b.jpg",
        "c_jpg.rf.0a1b.jpg",
    ]
    words = describe_inputs(inputs, "predicted", 4, 0)
    assert words == "4 predicted, 2 of unknown type (.csv 2), 3 masks of other images"
    write_layout(tmp_path / "streets", LAYOUTS["ADE20K: SceneParsing"][0])
    assert [Path(key).name for key in find_inputs([str(tmp_path / "streets")]).source.keys] == [
        "ADE_0.jpg",
        "ADE_1.jpg",
    ]
    write_layout(tmp_path / "classes", {"ant/a.jpg": None, "ant/a_mask.png": M, "bee/a.jpg": None})
    assert [Path(key).name for key in find_inputs([str(tmp_path / "classes")]).source.keys] == ["a.jpg", "a.jpg"]
    named = find_inputs([str(tmp_path / "train" / "a_jpg.rf.0a1b_mask.png")])
    assert len(named.source) == 1 and not named.left_out
