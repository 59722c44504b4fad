"""`vitrail data shard` and `vitrail data index`: equal data give equal shards, and archives of others are read with labels."""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
import tarfile
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

import vitrail
from tests.test_files import run_and_kill
from vitrail.cli import run
from vitrail.data.sources.open import open_data
from vitrail.errors import ConfigError, DataError


def picture(number, kind="png"):
    file = io.BytesIO()
    Image.fromarray(np.random.default_rng(number).integers(0, 255, (8, 9, 3), np.uint8)).save(file, kind)
    return file.getvalue()


def class_folders(root, count=12):
    for number in range(count):
        path = root / ("ant" if number % 3 else "bee") / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(picture(number))
    return root


def digests(folder):
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def test_equal_data_give_equal_bytes_and_another_seed_another_order(tmp_path):
    data = class_folders(tmp_path / "photos")
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        vitrail.shard_data(data, tmp_path / name, images=5, seed=seed, quiet=True)
        os.utime(data / "ant/1.png")
    first, again, other = (digests(tmp_path / name) for name in "abc")
    assert len(first) == 11  # three shards, index.json and seven tables
    assert first == again
    assert first["shard-000000.tar"] != other["shard-000000.tar"]


def test_members_are_the_files_and_the_numbers_of_their_classes(tmp_path):
    data = class_folders(tmp_path / "photos")
    vitrail.shard_data(data, tmp_path / "shards", images=7, quiet=True)
    source, seen = open_data(data, validation=0).train, set()
    for path in sorted(tmp_path.glob("shards/*.tar")):
        with tarfile.open(path) as archive:
            contents = {info.name: archive.extractfile(info).read() for info in archive}
        rows = [int(name.removesuffix(".png")) for name in contents if name.endswith(".png")]
        assert list(contents) == [f"{row:08d}.{ending}" for row in rows for ending in ("png", "cls")]
        for row in rows:
            assert contents[f"{row:08d}.png"] == source.read(row).content
            assert contents[f"{row:08d}.cls"] == str(source.targets[row]).encode()
        seen.update(rows)
    assert seen == set(range(12))


def test_parquet_is_copied_with_the_names_of_its_rows(tmp_path):
    columns = {"image": [picture(number, "jpeg") for number in range(6)], "label": [0, 1] * 3}
    pq.write_table(pa.table(columns), tmp_path / "x.parquet")
    vitrail.shard_data(tmp_path / "x.parquet", tmp_path / "shards", quiet=True)
    theirs, ours = (open_data(path, validation=0).train for path in (tmp_path / "x.parquet", tmp_path / "shards"))
    assert list(ours.keys) == list(theirs.keys) == [f"x.parquet#{row}" for row in range(6)]
    assert [ours.read(row).content for row in range(6)] == columns["image"]
    with tarfile.open(tmp_path / "shards" / "shard-000000.tar") as archive:
        assert {name.partition(".")[2] for name in archive.getnames()} == {"jpg", "cls"}


def test_several_labels_or_none_are_kept(tmp_path):
    class_folders(tmp_path)
    lines = ["path,label", *(f"ant/{number}.png,{labels}" for number, labels in ((1, "a;b"), (2, "b"), (4, "")))]
    (tmp_path / "many.csv").write_text("\n".join(lines))
    vitrail.shard_data(tmp_path / "many.csv", tmp_path / "many", quiet=True)
    ours = open_data(tmp_path / "many", validation=0).train
    assert ours.multi_label and ours.classes == ("a", "b")
    assert ours.targets.tolist() == [[1, 1], [0, 1], [0, 0]] and ours.targets.dtype == np.float32
    with tarfile.open(tmp_path / "many" / "shard-000000.tar") as archive:
        assert json.load(archive.extractfile("00000000.json")) == {"label": ["a", "b"]}
    vitrail.shard_data(tmp_path / "ant", tmp_path / "none", quiet=True)
    assert not open_data(tmp_path / "none", validation=0, labelled=False).train.labelled


def test_data_that_cannot_be_sharded_are_refused_and_leave_no_files(tmp_path):
    data = class_folders(tmp_path / "photos")
    with pytest.raises(ConfigError, match="0 images a shard"):
        vitrail.shard_data(data, tmp_path / "out", images=0)
    with pytest.raises(ConfigError, match="exists already"):
        vitrail.shard_data(data, data)
    with pytest.raises(DataError, match="arrays in memory"):
        vitrail.shard_data("digits", tmp_path / "out")
    with pytest.raises(DataError, match="no split 'val'"):
        vitrail.shard_data(data, tmp_path / "out", split="val")
    (data / "bee" / "gone.png").symlink_to("nowhere")
    with pytest.raises(DataError, match=r"the image bee/gone\.png cannot be read: No such file"):
        vitrail.shard_data(data, tmp_path / "out", quiet=True)
    assert [path.name for path in tmp_path.iterdir()] == ["photos"]


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are forked to be killed")
def test_a_process_that_is_killed_leaves_no_folder_and_the_same_call_writes_all(tmp_path):
    data, out = class_folders(tmp_path / "photos"), tmp_path / "here" / "shards"
    write = partial(vitrail.shard_data, data, out, images=5, quiet=True)
    write()
    whole, kills = digests(out), 0
    shutil.rmtree(out)
    while run_and_kill(write, 2 * kills + 1):
        kills += 1
        assert not out.exists() or digests(out) == whole
        shutil.rmtree(out, ignore_errors=True)
    assert kills >= 5 and digests(out) == whole
    assert [path.name for path in out.parent.iterdir()] == ["shards"]


def archive(path, members, form=tarfile.USTAR_FORMAT):
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w", format=form) as file:
        for name, content in members.items():
            content = content if isinstance(content, bytes) else str(content).encode()
            info = tarfile.TarInfo(name)
            info.size = len(content)
            file.addfile(info, io.BytesIO(content))
    return path


def labelled(kind, labels, first=0):
    return {
        f"x/{number:04d}.{ending}": content
        for number, label in enumerate(labels, first)
        for ending, content in (("jpg", picture(number, "jpeg")), (kind, label))
    }


LABELS = {
    "numbers": ("cls", [2, 0, 2, 1], ("0", "1", "2"), [2, 0, 2, 1]),
    "names": ("cls", ["bee", "ant", "bee", "ant"], ("ant", "bee"), [1, 0, 1, 0]),
    "a field": ("json", ['{"id": 7, "label": 1}', '{"label": 0}'] * 2, ("0", "1"), [1, 0, 1, 0]),
    "texts": ("txt", ["a bee\n", "an ant\n"] * 2, ("a bee", "an ant"), [0, 1, 0, 1]),
    "captions": ("txt", ["a bee on a rose", "an ant", "a bee in flight", "two ants"], (), []),
}


@pytest.mark.parametrize("kind", LABELS)
def test_labels_of_webdataset_are_read(tmp_path, kind):
    ending, labels, classes, targets = LABELS[kind]
    for number in (0, 2):
        archive(tmp_path / f"s-{number}.tar", labelled(ending, labels[number : number + 2], number))
    written = vitrail.index_data(tmp_path, quiet=True)
    assert (written["train"].shards, written["train"].images, written["train"].classes) == (2, 4, len(classes))
    source = open_data(tmp_path, validation=0, labelled=bool(classes)).train
    assert (source.classes, source.targets.tolist()) == (classes, targets)
    assert list(source.keys) == [f"s-{number // 2 * 2}.tar/x/{number:04d}.jpg" for number in range(4)]
    assert [source.read(row).content for row in range(4)] == [picture(number, "jpeg") for number in range(4)]


def test_numbers_get_the_names_that_are_given(tmp_path):
    archive(tmp_path / "wds [1]" / "s.tar", labelled("cls", [1, 0]))
    (tmp_path / "names.txt").write_text("ant\nbee\ncat\n")
    vitrail.index_data(tmp_path / "wds [1]", classes=tmp_path / "names.txt", quiet=True)
    source = open_data(tmp_path / "wds [1]", validation=0).train
    assert (source.classes, source.targets.tolist()) == (("ant", "bee", "cat"), [1, 0])


def test_an_index_elsewhere_leaves_the_archives_alone(tmp_path):
    for split in ("train", "val"):
        archive(tmp_path / "wds" / split / "s.tar", labelled("cls", [1, 0]))
    before = digests(tmp_path / "wds")
    vitrail.index_data(tmp_path / "wds", tmp_path / "index", quiet=True)
    assert digests(tmp_path / "wds") == before
    splits = open_data(tmp_path / "index")
    assert (len(splits.train), len(splits.val)) == (2, 2)
    assert splits.val.read(0).content == picture(0, "jpeg")


def test_names_of_archives_give_the_splits(tmp_path):
    for split, count in (("train", 4), ("val", 2)):
        archive(tmp_path / f"flowers-{split}-0000.tar", labelled("cls", [0, 1] * (count // 2)))
    vitrail.index_data(tmp_path, quiet=True)
    splits = open_data(tmp_path)
    assert splits.layout == "2 tar shards for train, val"
    assert (len(splits.train), len(splits.val)) == (4, 2)
    archive(tmp_path / "more.tar", labelled("cls", [0]))
    with pytest.raises(ConfigError, match="there is an index already"):
        vitrail.index_data(tmp_path, quiet=True)


def test_a_sample_has_one_image_whatever_else_it_has(tmp_path):
    members = {
        "a.jpg": picture(0, "jpeg"),
        "a.seg.png": picture(1),
        "a.cls": 0,
        "b.input.png": picture(2),
        "b.cls": 1,
        "c.json": "{}",
    }
    archive(tmp_path / "s.tar", members)
    said = []
    vitrail.index_data(tmp_path, quiet=True, log=said.append)
    source = open_data(tmp_path, validation=0).train
    assert list(source.keys) == ["s.tar/a.jpg", "s.tar/b.input.png"]
    assert len(said) == 1 and "1 sample in" in said[0]


REFUSED = {
    "has several images: 'a.jpg', 'a.png'": {"a.jpg": b"1", "a.png": b"2"},
    "1 of 2 samples .* have no label": {"a.jpg": b"1", "a.cls": 3, "b.jpg": b"2"},
    "'a.json' is no label": {"a.jpg": b"1", "a.json": "{"},
    "have no images": {"a.cls": 1},
}


@pytest.mark.parametrize("words", REFUSED)
def test_archives_without_a_plain_meaning_are_refused(tmp_path, words):
    archive(tmp_path / "s.tar", REFUSED[words])
    with pytest.raises(DataError, match=words):
        vitrail.index_data(tmp_path, quiet=True)
    assert not (tmp_path / "index").exists()


def test_an_archive_that_is_cut_off_is_named_and_the_rest_is_used(tmp_path):
    path = archive(tmp_path / "s.tar", labelled("cls", [0, 1, 0]))
    with open(path, "rb+") as file:
        file.truncate(512 * 11 + 100)  # within the third image
    said = []
    vitrail.index_data(tmp_path, quiet=True, log=said.append)
    assert len(open_data(tmp_path, validation=0).train) == 2
    assert len(said) == 1 and "s.tar is cut off" in said[0] and "x/0002.jpg, is not used" in said[0]


def test_the_command_line_writes_and_refuses_with_exit_codes(tmp_path, capsys):
    data = class_folders(tmp_path / "photos")
    assert run(["data", "shard", str(data), str(tmp_path / "shards"), "--images", "5", "--quiet", "--json"]) == 0
    described = json.loads(capsys.readouterr().out)["train"]
    assert (described["shards"], described["images"], described["classes"]) == (3, 12, 2)
    assert run(["data", "check", str(tmp_path / "shards")]) in (0, 3)
    assert "3 tar shards" in capsys.readouterr().out
    assert run(["data", "shard", str(data), str(tmp_path / "shards")]) == 2
    assert run(["data", "index", str(data)]) == 3
    assert "there are no .tar archives in" in capsys.readouterr().err
