"""Parquet: the layout of Hugging Face, its variants, and tables of paths."""

from __future__ import annotations

import builtins
import json
import pickle

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from vitrail.data.sample_order import TrainStream
from vitrail.data.sources import parquet
from vitrail.data.sources.open import find_data, open_data
from vitrail.errors import DataError
from vitrail.images.decode import BadImage
from vitrail.training.data import warn_of_order


def write(path, columns, *, features=None, group=4):
    table = pa.table(columns)
    if features:
        table = table.replace_schema_metadata({"huggingface": json.dumps({"info": {"features": features}})})
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, path, row_group_size=group)
    return path


def structs(*contents):
    return pa.array([{"bytes": content, "path": None} for content in contents])


def numbered(count, start=0):
    return [f"image {number}".encode() for number in range(start, start + count)]


IMAGE = {"_type": "Image"}
NAMED = {"image": IMAGE, "label": {"_type": "ClassLabel", "names": ["zebra", "ant"]}}


def test_structs_of_bytes_with_named_labels(tmp_path):
    path = write(tmp_path / "x.parquet", {"image": structs(*numbered(10)), "label": [0, 1] * 5}, features=NAMED)
    source = open_data(path, validation=0).train
    assert source.classes == ("zebra", "ant")  # the order that the data declare
    assert source.kind == "files"
    assert list(source.keys) == [f"x.parquet#{row}" for row in range(10)]
    for row in (9, 0, 4, 3, 8, 7):
        assert source.read(row).content == b"image %d" % row
    half = pickle.loads(pickle.dumps(source.subset([8, 1])))
    assert [half.read(0).content, half.read(1).content] == [b"image 8", b"image 1"]
    assert (half.read(0).key, half.read(0).target) == ("x.parquet#8", 0)


def test_one_of_several_columns_of_classes_has_to_be_named(tmp_path):
    features = {"img": IMAGE, "coarse": {"_type": "ClassLabel", "names": ["insect", "fish"]}}
    features["fine"] = {"_type": "ClassLabel", "names": ["bee", "ant", "cod"]}
    columns = {"img": structs(*numbered(4)), "coarse": [0, 0, 1, 1], "fine": [0, 1, 2, 2]}
    path = write(tmp_path / "x.parquet", columns, features=features)
    with pytest.raises(DataError, match="several columns of classes: 'coarse', 'fine'") as caught:
        open_data(path, validation=0)
    assert "columns label=coarse" in caught.value.remedy
    assert open_data(find_data(path, {"label": "fine"}), validation=0).train.classes == ("bee", "ant", "cod")
    assert len(open_data(path, validation=0, labelled=False).train) == 4


def test_shards_of_several_splits_in_a_folder(tmp_path):
    for split, first in (("train", 0), ("test", 20)):
        for shard in range(2):
            columns = {"image": structs(*numbered(5, first + 5 * shard)), "label": [0, 1, 0, 1, 0]}
            write(tmp_path / f"data/{split}-0000{shard}-of-00002.parquet", columns, features=NAMED, group=2)
    splits = open_data(tmp_path, validation=0)
    assert splits.layout == ".parquet files for train, test"
    assert (len(splits.train), len(splits.test)) == (10, 10)
    assert [splits.test.read(row).content for row in range(10)] == numbered(10, 20)
    assert splits.train.read(5).key == "data/train-00001-of-00002.parquet#0"


def test_files_in_folders_named_by_split(tmp_path):
    for split in ("train", "validation"):
        write(tmp_path / split / "0000.parquet", {"image": structs(*numbered(4)), "label": [0, 1, 0, 1]})
    splits = open_data(tmp_path)
    assert (len(splits.train), len(splits.val), splits.held_out) == (4, 4, False)


@pytest.mark.parametrize("column", ["image", "img", "bytes"])
def test_plain_bytes_with_numbers_for_names(tmp_path, column):
    path = write(tmp_path / "x.parquet", {column: numbered(4), "label": [0, 2, 2, 0]})
    source = open_data(path, validation=0).train
    assert source.classes == ("0", "1", "2")
    assert source.targets.tolist() == [0, 2, 2, 0]
    assert source.read(3).content == b"image 3"


def test_labels_by_name(tmp_path):
    path = write(tmp_path / "x.parquet", {"image": numbered(3), "class": ["b", "a", "b"]})
    source = open_data(path, validation=0).train
    assert source.classes == ("a", "b")
    assert source.targets.tolist() == [1, 0, 1]


@pytest.mark.parametrize("lists", [[[0, 1], [], [1]], [["zebra", "ant"], [], ["ant"]], ["zebra;ant", "", "ant"]])
def test_several_labels_of_an_image(tmp_path, lists):
    features = {"image": IMAGE, "label": [NAMED["label"]]} if isinstance(lists[0], list) else None
    path = write(tmp_path / "x.parquet", {"image": numbered(3), "label": lists}, features=features)
    source = open_data(path, validation=0, classes=["zebra", "ant"]).train
    assert source.multi_label
    assert source.targets.tolist() == [[1, 1], [0, 0], [0, 1]]


def test_the_declared_labels_win_over_other_columns(tmp_path):
    features = {"img": IMAGE, "fine": {"_type": "ClassLabel", "names": ["x", "y"]}}
    path = write(
        tmp_path / "x.parquet", {"target": [5, 5], "img": structs(*numbered(2)), "fine": [1, 0]}, features=features
    )
    source = open_data(path, validation=0).train
    assert source.classes == ("x", "y")
    assert source.targets.tolist() == [1, 0]


def test_a_table_of_paths_with_splits(tmp_path):
    for name in "abc":
        (tmp_path / f"{name}.jpg").write_bytes(name.encode())
    columns = {"path": ["a.jpg", "b.jpg", "c.jpg"], "label": ["x", "y", "y"], "split": ["train", "train", "val"]}
    splits = open_data(write(tmp_path / "x.parquet", columns))
    assert [splits.train.read(1).content, splits.val.read(0).content] == [b"b", b"c"]
    assert splits.val.targets.tolist() == [1]


def test_images_that_are_beside_the_table(tmp_path):
    (tmp_path / "a.jpg").write_bytes(b"a")
    values = [{"bytes": None, "path": "a.jpg"}, {"bytes": None, "path": "../secret"}, {"bytes": None, "path": None}]
    path = write(tmp_path / "x.parquet", {"image": pa.array(values), "label": [0, 1, 0]})
    source = open_data(path, validation=0).train
    assert source.read(0).content == b"a"
    with pytest.raises(BadImage, match="points outside"):
        source.read(1)
    with pytest.raises(BadImage, match="contains no image"):
        source.read(2)


def test_the_only_column_of_bytes_holds_the_images_whatever_its_name(tmp_path):
    path = write(tmp_path / "x.parquet", {"photo": pa.array([b"a", b"b"]), "label": [0, 1]})
    assert open_data(path, validation=0).train.read(1).content == b"b"
    path = write(tmp_path / "y.parquet", {"photo": pa.array([b"a"]), "mask": pa.array([b"b"]), "label": [0]})
    with pytest.raises(DataError, match="no path column; its columns are 'photo', 'mask', 'label'"):
        open_data(path)


def test_labels_that_are_all_minus_one_are_none(tmp_path):
    path = write(tmp_path / "x.parquet", {"image": numbered(2), "label": [-1, -1]})
    assert not open_data(path, validation=0, labelled=False).train.labelled
    with pytest.raises(DataError, match="no labels"):
        open_data(path)


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ({"image": numbered(2)}, "no label column; its columns are 'image'"),
        ({"picture_id": [1, 2], "label": [0, 1]}, "no path column"),
        ({"image": numbered(2), "label": [0, -1]}, "contain -1"),
        ({"image": numbered(2), "label": [0, None]}, "1 rows of .* have no label"),
        ({"image": numbered(2), "label": ["a", ""]}, "rows without a label"),
        ({"image": numbered(2), "label": [[0], [-3]]}, r"row 2 of .* has the labels \[-3\]"),
        ({"image": [], "label": []}, "has no rows|no column"),
    ],
)
def test_what_is_wrong_is_named(tmp_path, columns, words):
    with pytest.raises(DataError, match=words):
        open_data(write(tmp_path / "x.parquet", columns))


def test_a_number_beyond_the_names_is_refused(tmp_path):
    path = write(tmp_path / "x.parquet", {"image": structs(*numbered(2)), "label": [0, 2]}, features=NAMED)
    with pytest.raises(DataError, match="contain 2") as error:
        open_data(path)
    assert error.value.remedy == "give numbers from 0 to 1"


def test_shards_of_unlike_layout_are_refused(tmp_path):
    write(tmp_path / "train-0.parquet", {"image": numbered(2), "label": [0, 1]})
    write(tmp_path / "train-1.parquet", {"image": numbered(2), "label": ["a", "b"]})
    with pytest.raises(DataError, match=r"the columns of .* differ from those of"):
        open_data(tmp_path)


def test_a_damaged_file_is_named(tmp_path):
    path = write(tmp_path / "x.parquet", {"image": numbered(2), "label": [0, 1]})
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(DataError, match=r"x\.parquet cannot be read as Parquet"):
        open_data(path)


def test_damage_in_the_column_of_labels_is_named(tmp_path):
    labels = [f"{row:08}" for row in range(400)]
    path = write(tmp_path / "x.parquet", {"image": [b"x"] * 400, "label": labels}, group=400)
    content, words = path.read_bytes(), set()
    end = content.index(b"PAR1", 4)
    for place in range(4, end, max(end // 60, 1)):
        path.write_bytes(content[:place] + bytes([content[place] ^ 0x10]) + content[place + 1 :])
        try:
            open_data(path)
        except DataError as error:
            words.add(error.what.partition(":")[0])
    assert f"{path} cannot be read as Parquet" in words


def test_a_file_that_is_damaged_later_gives_bad_images(tmp_path):
    path = write(tmp_path / "x.parquet", {"image": numbered(2), "label": [0, 1]})
    source = open_data(path, validation=0).train
    path.write_bytes(b"PAR1")
    with pytest.raises(BadImage, match="row group 0"):
        source.read(0)


def test_without_pyarrow_the_command_that_brings_it_is_shown(tmp_path, monkeypatch):
    path = write(tmp_path / "x.parquet", {"image": numbered(2), "label": [0, 1]})
    real = builtins.__import__

    def without(name, *arguments, **options):
        if name.startswith("pyarrow"):
            raise ImportError(name)
        return real(name, *arguments, **options)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(DataError, match="needs pyarrow") as error:
        open_data(path)
    assert error.value.remedy == "pip install 'vitrail[data]'"


def test_only_so_many_row_groups_are_kept(tmp_path, monkeypatch):
    path = write(
        tmp_path / "x.parquet", {"image": [bytes([row]) * 1000 for row in range(20)], "label": [0] * 20}, group=2
    )
    contents = open_data(path, validation=0).train.contents
    monkeypatch.setattr(parquet, "CACHED_BYTES", 5000)
    for row in np.random.default_rng(0).permutation(20).tolist():
        assert contents[row] == bytes([row]) * 1000
        assert sum(column.nbytes for column in contents._kept.values()) <= 5000


@pytest.mark.slow
def test_real_cifar(real_data):
    splits = open_data(real_data / "cifar10")
    assert splits.classes[:3] == ("airplane", "automobile", "bird")
    assert splits.train.counts().tolist() == [4250] * 10
    assert splits.val.counts().tolist() == [750] * 10
    assert splits.test.counts().tolist() == [1000] * 10
    assert splits.held_out


def test_an_epoch_reads_each_row_group_once_where_they_do_not_fit_in_memory(tmp_path, monkeypatch):
    contents = [bytes([number % 256]) * 1000 for number in range(200)]
    path = write(tmp_path / "x.parquet", {"image": structs(*contents), "label": [0, 1] * 100}, features=NAMED, group=10)
    source = open_data(path, validation=0).train
    assert source.units is None  # all of it fits
    monkeypatch.setattr(parquet, "CACHED_BYTES", 80_000)  # of 200,000
    source = open_data(path, validation=0).train.subset(np.r_[0:95, 105:200])
    assert source.units.count == 20 and source.units.window == 3
    reads = []
    opened = pq.ParquetFile.read_row_group
    monkeypatch.setattr(pq.ParquetFile, "read_row_group", lambda *a, **k: (reads.append(a[1]), opened(*a, **k))[1])
    stream = TrainStream(images=190, batch=7, seed=0, units=source.units)
    for step in range(28):
        for _, row, _ in stream.ids(step).tolist():
            assert source.read(row).content[:1] == bytes([int(source.keys[row].split("#")[1]) % 256])
    assert len(reads) <= 20 + 4  # the last steps begin the second epoch
    assert source.units is source.units and pickle.loads(pickle.dumps(source)).units.window == 3


def test_a_file_that_is_sorted_by_class_and_cannot_be_shuffled_whole_is_warned_of(tmp_path, monkeypatch):
    monkeypatch.setattr(parquet, "CACHED_BYTES", 9_000)
    labels = np.repeat(np.arange(4), 25)
    for name, order in {"sorted": labels, "shuffled": np.random.default_rng(0).permutation(labels)}.items():
        columns = {"image": structs(*[bytes(500)] * 100), "label": order.tolist()}
        source = open_data(write(tmp_path / f"{name}.parquet", columns, group=5), validation=0).train
        words = warn_of_order(source, seed=0)
        assert bool(words) == (name == "sorted"), words
    assert "seem to be sorted by class" in warn_of_order(open_data(tmp_path / "sorted.parquet", validation=0).train, 0)
