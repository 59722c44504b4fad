"""Tables and folders as other tools write them: text, names, labels and what lies beside the images."""

from __future__ import annotations

import os
from pathlib import Path
from unicodedata import normalize

import numpy as np
import pytest

from tests.each_row import each_row
from vitrail.data.sources.layout_warnings import find_layout_warnings
from vitrail.data.sources.open import open_data
from vitrail.errors import DataError

DOCUMENT = Path(__file__).parents[3] / "docs" / "data.md"
CAFE = {form: normalize(form, "caf\u00e9") for form in ("NFC", "NFD")}


def write(root: Path, files: dict[str, str | bytes]) -> None:
    """Writes files; of an image the content is its name."""
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())


def images(*names: str) -> dict[str, str | bytes]:
    return {name: name.encode() for name in names}


def labels(splits) -> dict[str, dict[str, str]]:
    """The label or labels of each image by split; several are joined by +."""
    found = {}
    for name in ("train", "val", "test"):
        if (source := getattr(splits, name)) is not None:
            chosen = source.targets if source.multi_label else np.eye(len(source.classes))[source.targets]
            names = ["+".join(np.array(source.classes)[row > 0].tolist()) for row in chosen]
            found[name] = dict(zip(source.keys, names))
    return found


FOUR = images("a.jpg", "b.jpg", "c.jpg", "d.jpg")
TABLES = [
    # numbers that a program made floats, and numbers that are no whole ones
    ("path,label\na.jpg,3.0\nb.jpg,3\nc.jpg,10.0\n", "a 3 b 3 c 10"),
    ("path,label\na.jpg,1.0\nb.jpg,1.5\n", "a 1.0 b 1.5"),
    ("path,label\na.jpg,007\nb.jpg,7\n", "a 007 b 7"),
    # encodings and line ends
    ("path\tlabel\r\na.jpg\tcat\r\nb.jpg\tdog\r\n".encode("utf-16"), "a cat b dog"),
    ("\ufeffpath,label\ra.jpg,cat\rb.jpg,dog\r", "a cat b dog"),
    ("path,label \n a.jpg , cat\u00a0\n.\\b.jpg,cat\n", "a cat b cat"),
    (f"path,label\na.jpg,{CAFE['NFC']}\nb.jpg,{CAFE['NFD']}\n", "a café b café"),
    # several labels of an image
    ("path,label\na.jpg,Edema|Mass\nb.jpg,Mass|Edema\nc.jpg,Edema\n", "a Edema+Mass b Edema+Mass c Edema"),
    ("path,label\na.jpg,\"['ant', 'bee']\"\nb.jpg,['bee']\nc.jpg,[]\n", "a ant+bee b bee c "),
    ('path,labels\na.jpg,"[""ant"", ""bee""]"\nb.jpg,"[""bee""]"\n', "a ant+bee b bee"),
    (
        "path,tags\na.jpg,haze primary\nb.jpg,clear primary\nc.jpg,clear haze sea\nd.jpg,sea\n",
        "a haze+primary b clear+primary c clear+haze+sea d sea",
    ),
    ("path,label\na.jpg,\"['ant',\n 'bee']\"\nb.jpg,['bee']\n", "a ant+bee b bee"),
    ("path,labels\na.jpg,polar bear\nb.jpg,golden retriever\n", "a polar bear b golden retriever"),
    ("path,rust,scab\na.jpg,1,0\nb.jpg,1,1\nc.jpg,0,0\n", "a rust b rust+scab c "),
    ("path,rust,scab\na.jpg,1.0,0.0\nb.jpg,0.0,1.0\n", "a rust b scab"),
    ("path,rust,scab\na.jpg,True,False\nb.jpg,False,True\n", "a rust b scab"),
    ("image_id,Smiling,Male\na.jpg,1,-1\nb.jpg,1,1\nc.jpg,-1,-1\n", "a Smiling b Male+Smiling c "),
    # columns by other names
    ("image_id,breed\na,pug\nb,boxer\n", "a pug b boxer"),
    ("id,width,label\na,20,pug\nb,20,boxer\n", "a pug b boxer"),
]


@each_row("text, expected", TABLES)
def test_tables_of_other_tools(tmp_path, text: str | bytes, expected: str) -> None:
    write(tmp_path, FOUR | {"x.csv": text})
    found = labels(open_data(tmp_path / "x.csv", validation=0))["train"]
    assert " ".join(f"{key[0]} {label}" for key, label in found.items()) == expected
    assert all((tmp_path / key).is_file() for key in found)


LAYOUTS = [
    # a table beside images, beside a folder of them, in folders of splits
    (images("a.jpg", "b.jpg") | {"labels.csv": "path,label\na.jpg,x\nb.jpg,y\n"}, {"train": "x y"}, "(labels.csv)"),
    (
        images("photos/a.jpg", "photos/b.jpg") | {"annotations.csv": "file,label\nphotos/a.jpg,x\nphotos/b.jpg,y\n"},
        {"train": "x y"},
        "(annotations.csv)",
    ),
    (
        images("train/a.jpg", "train/b.jpg", "test/a.jpg")
        | {"train.csv": "id,label\na,x\nb,y\n", "sample_submission.csv": "id,label\na,x\n"},
        {"train": "x y"},
        "files in train/, .jpg added to the names; 1 images that no table names",
    ),
    (
        images("train_images/a.png", "train_images/b.png") | {"train.csv": "image_id,label\na.png,x\nb.png,y\n"},
        {"train": "x y"},
        "files in train_images/",
    ),
    (
        images("train/a.jpg", "train/b.jpg", "test/c.jpg")
        | {
            "train/metadata.jsonl": '{"file_name": "a.jpg", "label": "x"}\n{"file_name": "b.jpg", "label": "y"}\n',
            "test/metadata.jsonl": '{"file_name": "c.jpg", "label": "y"}\n',
        },
        {"train": "x y", "test": "y"},
        "train/metadata.jsonl",
    ),
    (
        images("train/a.jpg", "train/b.jpg", "valid/c.jpg")
        | {
            "train/_classes.csv": "filename, x, y\na.jpg, 1, 0\nb.jpg, 0, 1\n",
            "valid/_classes.csv": "filename, x, y\nc.jpg, 0, 1\n",
        },
        {"train": "x y", "val": "y"},
        "a column of zeros and ones for each of 2 classes",
    ),
    (
        images("a.jpg", "b.jpg", "c.jpg")
        | {
            "train.csv": "path,label\na.jpg,x\nb.jpg,y\n",
            "val.csv": "photo,kind\nc.jpg,y\n",
            "all.csv": "path,label\nc.jpg,y\n",
        },
        {"train": "x y"},
        "tables not used: all.csv: not named after a split, val.csv:",
    ),
    (
        images("a.jpg", "b.jpg", "c.jpg")
        | {"all.csv": "path,label,set\na.jpg,x,Train\nb.jpg,y,train\nc.jpg,y,valid\n"},
        {"train": "x y", "val": "y"},
        "splits in the column 'set'",
    ),
    # folders of the system, inside of classes and beside them, and names in two Unicode forms
    (
        images(
            "x/1.jpg",
            "y/1.jpg",
            "x/@eaDir/1.jpg/SYNOPHOTO_THUMB_M.jpg",
            "#recycle/1.jpg",
            "System Volume Information/1.jpg",
            ".Trash-1000/files/1.jpg",
        ),
        {"train": "x y"},
        "3 system folders skipped",
    ),
    (
        images(f"train/{CAFE['NFC']}/1.jpg", "train/tea/1.jpg", f"val/{CAFE['NFD']}/1.jpg"),
        {"train": "café tea", "val": "café"},
        "class folders in train, val",
    ),
    (images(f"{CAFE['NFC']}/1.jpg", f"{CAFE['NFD']}/1.jpg", "tea/1.jpg"), {"train": "café café tea"}, "class folders"),
    (
        images(f"{CAFE['NFC']}.jpg", "b.jpg") | {"labels.csv": f"path,label\n{CAFE['NFD']}.jpg,x\nb.jpg,y\n"},
        {"train": "x y"},
        "(labels.csv)",
    ),
]


@each_row("files, expected, words", LAYOUTS)
def test_folders_of_other_tools(tmp_path, files, expected, words) -> None:
    write(tmp_path, files)
    splits = open_data(tmp_path, validation=0)
    assert {split: " ".join(sorted(part.values())) for split, part in labels(splits).items()} == expected
    assert words in splits.layout
    for split in expected:
        source = getattr(splits, split)
        assert [bytes(source.read(row).content) for row in range(len(source))] == [
            os.path.relpath(os.path.join(source.contents.root, key), tmp_path).encode() for key in source.keys
        ]


EXPORTS = {
    ("Kaggle", "train.csv and train/"): LAYOUTS[2],
    ("Kaggle", "train.csv and train_images/"): LAYOUTS[3],
    ("Hugging Face", "imagefolder with metadata.jsonl"): LAYOUTS[4],
    ("Roboflow", "Multi-Class Classification"): LAYOUTS[5],
    ("Synology", "a shared folder"): LAYOUTS[8],
}


def test_the_documentation_lists_the_exports_that_are_opened() -> None:
    table = DOCUMENT.read_text().partition("### Exports of tools")[2].partition("## ")[0]
    rows = [tuple(cell.strip() for cell in line.split("|")[1:3]) for line in table.splitlines() if line.startswith("|")]
    assert rows[2:] == list(EXPORTS)
    marks = ("train/a.jpg", "train_images/a.png", "train/metadata.jsonl", "train/_classes.csv", "x/@eaDir/1.jpg/")
    for (files, *_), mark in zip(EXPORTS.values(), marks):
        assert any(name.startswith(mark) for name in files), mark


REFUSED = [
    # Tiny ImageNet
    (
        images("train/x/images/1.jpg", "train/y/images/1.jpg", "val/images/1.jpg"),
        r"images +val .*\n  hint: put these images into folders of their classes, or give a table of all images",
    ),
    # 0 beside -1 and 1 may be uncertain or missing
    (
        images("a.jpg", "b.jpg") | {"x.csv": "path,p,q\na.jpg,1,-1\nb.jpg,0,1\n"},
        r"no label column; its columns are 'path', 'p', 'q'",
    ),
    (
        images("a.jpg") | {"x.csv": 'image_id,width,bbox\na,4,"[1, 2]"\na,4,"[2, 3]"\n'},
        r"'bbox': a table of boxes, which is not read\n  hint: export the boxes as COCO",
    ),
    (
        images("a.jpg") | {"labels.csv": "photo,kind\na.jpg,x\n"},
        r"tables not used: labels\.csv: .* no path column; its columns are 'photo', 'kind'",
    ),
    (
        images("a.jpg") | {"labels.csv": "path,x,y\na.jpg,red,blue\n"},
        r"labels\.csv: .* no label column; its columns are 'path', 'x', 'y'",
    ),
    (images("a.jpg") | {"labels.csv": "path,label\nz.jpg,x\n"}, r"labels\.csv: none of the files in .* exists"),
    (
        images("a.jpg") | {"one.csv": "path,label\na.jpg,x\n", "two.csv": "path,label\na.jpg,y\n"},
        r"several tables of labels: one\.csv and two\.csv",
    ),
    (images("u/a.jpg", "v/a.jpg") | {"x.csv": "path,label\na.jpg,x\n"}, r"files in .*x\.csv are found in u/ and v/"),
    (images("a.jpg") | {"labels.csv": "path,label,xmin\na.jpg,x,1\na.jpg,x,2\n"}, r"already in line 2"),
]


@each_row("files, words", REFUSED)
def test_what_cannot_be_used_is_named(tmp_path, files, words) -> None:
    write(tmp_path, files)
    with pytest.raises(DataError, match=words):
        open_data(tmp_path / "x.csv" if "x.csv" in files else tmp_path)


def test_odd_class_names_are_warned_of(tmp_path) -> None:
    write(tmp_path, FOUR | {"x.csv": "path,label\na.jpg,haze sea\nb.jpg,sea\nc.jpg,haze\nd.jpg,nan\n"})
    words = " ".join(find_layout_warnings(open_data(tmp_path / "x.csv", validation=0)))
    assert "class 'nan' looks like a missing label" in words
    write(tmp_path, {"x.csv": "path,label\na.jpg,haze sea\nb.jpg,sea\nc.jpg,haze\nd.jpg,haze sea sky\n"})
    assert "names that recur" not in " ".join(find_layout_warnings(open_data(tmp_path / "x.csv", validation=0)))
    write(tmp_path, {"x.csv": "path,label\na.jpg,haze sea\nb.jpg,sea\nc.jpg,haze\nd.jpg,sea haze\n"})
    assert "names that recur" in " ".join(find_layout_warnings(open_data(tmp_path / "x.csv", validation=0)))


@each_row(
    "shape, accepted",
    [
        ((4, 3, 32, 32), False),
        ((4, 3, 24, 40), False),
        ((4, 13, 64, 64), False),
        ((4, 32, 32, 3), True),
        ((4, 3, 32, 3), True),
        ((4, 8, 8, 5), True),
        ((4, 1, 9, 4), True),
    ],
)
def test_arrays_with_the_channels_first_are_refused(shape, accepted) -> None:
    data = np.zeros(shape, np.uint8), np.arange(4) % 2
    if accepted:
        assert len(open_data(data, validation=0).train) == 4
    else:
        with pytest.raises(DataError, match=r"with the channels first\n  hint: .*transpose\(0, 2, 3, 1\)"):
            open_data(data)


def test_paths_of_windows_do_not_lead_out_of_the_folder(tmp_path) -> None:
    write(tmp_path, images("secret.jpg", "data/a.jpg") | {"data/x.csv": "path,label\na.jpg,x\n..\\secret.jpg,y\n"})
    assert list(open_data(tmp_path / "data" / "x.csv", validation=0).train.keys) == ["a.jpg", "..\\secret.jpg"]


def test_one_file_by_two_spellings_is_refused(tmp_path) -> None:
    write(tmp_path, FOUR | {"x.csv": "path,label\na.jpg,x\n.\\a.jpg,y\n"})
    with pytest.raises(DataError, match=r"line 3: the path 'a\.jpg' is already in line 2"):
        open_data(tmp_path / "x.csv")
