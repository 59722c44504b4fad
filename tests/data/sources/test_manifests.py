"""Tables that name one image a row: what is read from them, and that every complaint names the line."""

from __future__ import annotations

import json

import numpy as np
import pandas
import pytest
from PIL import Image

import vitrail
from tests.slow import few_or_nightly
from vitrail.data.sources.open import find_data, open_data
from vitrail.errors import ConfigError, DataError


@pytest.fixture
def table(tmp_path):
    """Writes a manifest beside the files a.jpg to d.jpg, and gives its path."""
    for name in "abcd":
        (tmp_path / f"{name}.jpg").write_bytes(name.encode())

    def write(text, name="labels.csv"):
        (tmp_path / name).write_bytes(text if isinstance(text, bytes) else text.encode())
        return tmp_path / name

    return write


def rows(*objects):
    return "".join(json.dumps(each) + "\n" for each in objects)


def labels(source):
    return {key: source.classes[target] for key, target in zip(source.keys, source.targets)}


FORMS = [
    ("x.csv", "path,label\na.jpg,cat\n./b.jpg,ant\n"),
    ("x.csv", "\ufeffLabel , file_name\r\ncat,a.jpg\r\n\r\nant,b.jpg\r\n"),
    ("x.CSV", 'image,class,more\n"a.jpg",cat,"1,2"\nb.jpg, ant ,\n'),
    ("x.csv", "filepath;category\na.jpg;cat\nb.jpg;ant\n"),
    ("x.csv", "jpeg\tclassname\na.jpg\tcat\nb.jpg\tant\n"),
    ("x.csv", "a.jpg,cat\nb.jpg,ant\n"),
    ("x.csv", "\ncat;a.jpg\nant;b.jpg\n"),
    ("x.tsv", "a.jpg\tcat\ttrain\nb.jpg\tant\ttraining\n"),
    ("x.tsv", "filename\ttarget\na.jpg\tcat\nb.jpg\tant\n"),
    ("x.jsonl", rows({"path": "a.jpg", "label": "cat"}, {"label": "ant", "path": "b.jpg"})),
    ("x.ndjson", rows({"file": "a.jpg", "labels": ["cat"]}, {"file": "b.jpg", "labels": ["ant"]})),
]


def test_the_same_table_in_many_forms(table):
    for name, text in FORMS:
        splits = open_data(table(text, name), validation=0)
        assert labels(splits.train) == {"a.jpg": "cat", "b.jpg": "ant"}, text
        assert splits.classes == ("ant", "cat"), text
        assert splits.train.read(1).content == b"b", text
        assert splits.layout == f"a manifest, {name}", text


def test_numbers_as_labels_are_names_in_the_order_of_numbers(table):
    text = rows({"path": "a.jpg", "label": 10}, {"path": "b.jpg", "label": 9}, {"path": "c.jpg", "label": 9.0})
    train = open_data(table(text, "x.jsonl"), validation=0).train
    assert train.classes == ("9", "10")
    assert train.targets.tolist() == [1, 0, 0]


def test_several_labels_of_an_image(table):
    train = open_data(table("path,label\na.jpg,sea; sky\nb.jpg,sky\nc.jpg,\n"), validation=0).train
    assert train.multi_label
    assert train.classes == ("sea", "sky")
    assert train.targets.tolist() == [[1, 1], [0, 1], [0, 0]]
    assert train.read(0).target.tolist() == [1, 1]
    assert train.counts().tolist() == [1, 2]


def test_lists_of_labels_say_the_same(table):
    text = rows({"path": "a.jpg", "label": ["sea", "sky"]}, {"path": "b.jpg", "label": []})
    assert open_data(table(text, "x.jsonl"), validation=0).train.targets.tolist() == [[1, 1], [0, 0]]


def test_a_column_of_splits(table):
    text = "path,label,split\na.jpg,cat,train\nb.jpg,ant,Validation\nc.jpg,ant,train\nd.jpg,cat,test\n"
    splits = open_data(table(text))
    assert [list(part.keys) for part in (splits.train, splits.val, splits.test)] == [
        ["a.jpg", "c.jpg"],
        ["b.jpg"],
        ["d.jpg"],
    ]
    assert not splits.held_out
    assert splits.val.targets.tolist() == [0]


def test_a_class_that_only_validation_has_cannot_be_learnt(table):
    text = "path,label,split\na.jpg,cat,train\nb.jpg,ant,val\n"
    with pytest.raises(DataError, match="1 class has no training images: 'ant'"):
        open_data(table(text))


def test_an_absolute_path_is_taken_as_it_is(table, tmp_path):
    absolute = str(tmp_path / "a.jpg")
    (tmp_path / "deep").mkdir()
    path = table(f"path,label\n{absolute},cat\n", "deep/labels.csv")
    source = open_data(path, validation=0).train
    assert list(source.keys) == [absolute]
    assert source.read(0).content == b"a"


def test_columns_of_other_names_are_named(table, tmp_path):
    named = {"path": "photo", "label": "breed", "split": "part"}
    text = "photo,breed,label,part\na.jpg,cat,1,train\nb.jpg,ant,2,train\nc.jpg,cat,3,val\n"
    splits = open_data(find_data(table(text), named))
    assert labels(splits.train) == {"a.jpg": "cat", "b.jpg": "ant"}
    assert labels(splits.val) == {"c.jpg": "cat"}
    frame = pandas.DataFrame({"photo": [str(tmp_path / "a.jpg"), str(tmp_path / "b.jpg")], "breed": ["cat", "ant"]})
    of_frame = open_data(find_data(frame, {"path": "photo", "label": "breed"}), validation=0).train
    assert of_frame.classes == ("ant", "cat")
    frame.to_parquet(tmp_path / "x.parquet")
    of_parquet = open_data(find_data(tmp_path / "x.parquet", {"path": "photo", "label": "breed"}), validation=0).train
    assert labels(of_parquet) == labels(of_frame)
    with pytest.raises(DataError, match=r"no column 'bred' of the label(.|\n)*did you mean 'breed'"):
        open_data(find_data(table(text), {"path": "photo", "label": "bred"}))
    with pytest.raises(DataError, match="is no table"):
        find_data(tmp_path, named)


def test_columns_are_an_option_and_stay_with_the_run(tmp_path):
    rows = ["photo,breed"]
    for name in ("ant", "bee"):
        for number in range(6):
            pixels = np.random.default_rng([number, len(rows)]).integers(0, 255, (16, 16, 3), np.uint8)
            Image.fromarray(pixels).save(tmp_path / f"{name}{number}.png")
            rows.append(f"{name}{number}.png,{name}")
    (tmp_path / "x.csv").write_text("\n".join(rows))
    how = {
        "init": "none",
        "size": 16,
        "batch": 4,
        "quiet": True,
        "set": ["model.changes.depth=1", "compute.tune=false"],
    }
    run = vitrail.train(tmp_path / "x.csv", columns="path=photo,label=breed", steps=2, out=tmp_path / "run", **how)
    vitrail.train(resume=run.folder, steps=3, quiet=True)
    frame = pandas.read_csv(tmp_path / "x.csv")
    frame["photo"] = [str(tmp_path / name) for name in frame["photo"]]
    named = {"path": "photo", "label": "breed"}
    vitrail.train(frame, columns=named, steps=2, out=tmp_path / "frame", **how)
    result = vitrail.evaluate(run.folder, tmp_path / "x.csv", columns=named, quiet=True, log=lambda line: None)
    assert result.figures["images"] == run.figures["images"]
    assert vitrail.check_data(tmp_path / "x.csv", columns=named).counts["train"] == {"ant": 6, "bee": 6}
    with pytest.raises(ConfigError, match=r"data.columns names the 'image'"):
        vitrail.train(tmp_path / "x.csv", columns="image=photo", steps=2, out=tmp_path / "other", **how)
    with pytest.raises(ConfigError, match="write path=NAME"):
        vitrail.train(tmp_path / "x.csv", columns="photo", steps=2, out=tmp_path / "other", **how)


def test_a_path_that_leads_out_of_the_folder_is_read_and_counted(table, tmp_path):
    (tmp_path / "tables").mkdir()
    (tmp_path / "tables/x.csv").write_text("path,label\n../a.jpg,cat\n../b.jpg,ant\n")
    splits = open_data(tmp_path / "tables/x.csv", validation=0)
    assert labels(splits.train) == {str(tmp_path / "a.jpg"): "cat", str(tmp_path / "b.jpg"): "ant"}
    assert splits.train.read(1).content == b"b"
    assert splits.layout == "a manifest, x.csv; 2 paths outside of the folder of the table, such as ../a.jpg"


def test_a_file_by_its_relative_and_its_absolute_path_is_the_same_file(table, tmp_path):
    path = table(f"path,label\na.jpg,cat\nb.jpg,dog\n{tmp_path}/c/../a.jpg,dog\n")
    with pytest.raises(DataError, match=r"line 4: the path '.*/a\.jpg' is already in line 2"):
        open_data(path)


def test_without_labels_it_serves_where_none_are_needed(table):
    path = table("path\na.jpg\nb.jpg\n")
    assert list(open_data(path, validation=0, labelled=False).train.keys) == ["a.jpg", "b.jpg"]
    with pytest.raises(DataError, match="no label column; its columns are 'path'"):
        open_data(path)


MISTAKES = [
    ("x.csv", "", "has no rows"),
    ("x.csv", "path,label\n", "has no rows"),
    ("x.csv", "photo,label\na.jpg,cat\n", "no path column; its columns are 'photo', 'label'"),
    ("x.csv", "a.jpg,b.jpg,cat\n", "no header, and its columns are unclear"),
    ("x.csv", "1,a.jpg,cat,sea\n", "no header, and its columns are unclear"),
    ("x.csv", "path,label,label\na.jpg,cat,dog\n", "two columns 'label'"),
    ("x.csv", "path,label\na.jpg,cat,dog\n", "line 2: 3 fields, but the header has 2"),
    ("x.csv", 'path,label\na.jpg,cat\n"b.jpg,dog\n', "line 3: malformed CSV"),
    ("x.csv", 'path,label\n"a"b.jpg,cat\n', "line 2: malformed CSV"),
    ("x.csv", b"path,label\na.jpg,\xff\xfe\n", "not UTF-8 text"),
    ("x.csv", "path,label\n" + "x" * 200_000 + ",cat\n", "line 2: malformed CSV, field larger"),
    ("x.csv", "x" * 2_000_000, "line 1 is longer than"),
    ("x.csv", "path,label\na.jpg,cat\nb.jpg,\n", "line 3: no label"),
    ("x.csv", "path,label\n,cat\n", "line 2: no path"),
    ("x.csv", "path,label\na.jpg,cat\nb.jpg,cat\n./a.jpg,dog\n", "line 4: the path 'a.jpg' is already in line 2"),
    ("x.csv", "path,label,split\na.jpg,cat,trian\n", "line 2: the split is 'trian'"),
    (
        "x.csv",
        "path,label\nimages/a.jpg,cat\n",
        r"none of the files in .* exists; looked for .*images/a.jpg\n  hint: .*\(inside it\), or absolute paths",
    ),
    ("x.jsonl", '{"path": "a.jpg", "label": "cat"}\n{"path": \n', "line 2, column 9: broken JSON"),
    ("x.jsonl", '{"path": "a.jpg", "label": ' + "9" * 5000 + "}\n", "line 1: broken JSON"),
    ("x.jsonl", "[1, 2]\n", "line 1: not an object"),
    ("x.jsonl", "[" * 100_000 + "\n", "line 1: broken JSON, it is nested deeper than 100 levels"),
    ("x.jsonl", '{"path": "a.jpg", "label": {"a": 1}}\n', "line 1: the label is an object"),
    (
        "x.jsonl",
        '{"path": "a.jpg", "label": ' + "[" * 50 + '"cat"' + "]" * 50 + "}\n",
        "line 1: the label is a list of lists",
    ),
    ("x.jsonl", '{"path": ' + "[" * 50 + "]" * 50 + ', "label": "cat"}\n', "line 1: the path is a list of lists"),
    ("x.jsonl", '{"path": "a.jpg", "label": "\\ud800cat"}\n', "line 1: broken JSON, a string has a lone surrogate"),
    ("x.jsonl", '{"path": "a.jpg\\uDFFF", "label": "cat"}\n', "line 1: broken JSON, a string has a lone surrogate"),
    ("x.jsonl", '{"path": "a.jpg", "label": "\\u001b[31mcat"}\n', "has control characters"),
    ("x.csv", "path,label\na.jpg,\x9b31mcat\n", "has control characters"),
    ("x.jsonl", '{"path": "a.jpg", "label": "cat"}\n{"path": "b.jpg", "label": NaN}\n', "line 2: no label"),
    ("x.jsonl", '{"path": "a.jpg", "label": "cat"}\n{"path": "b.jpg"}\n', "line 2: no label"),
]


def test_what_is_wrong_is_named_with_its_line(table):
    for name, text, words in MISTAKES:
        with pytest.raises(DataError, match=words) as error:
            open_data(table(text, name))
        assert error.value.remedy, words


@pytest.mark.parametrize("tries", few_or_nightly(100, 10_000))
@pytest.mark.parametrize("name", ["x.csv", "x.jsonl"])
def test_no_damage_gives_anything_but_a_source_or_a_data_error(table, name, tries):
    random = np.random.default_rng(5)
    whole = {
        "x.csv": b'path,label,split\na.jpg,cat,train\n"b.jpg",ant,val\nc.jpg,a;b,train\n',
        "x.jsonl": rows({"path": "a.jpg", "label": "cat", "split": "train"}, {"path": "b.jpg", "label": [1]}).encode(),
    }[name]
    outcomes = []
    for _ in range(tries):
        content = bytearray(whole)
        for place in random.integers(0, len(content), 2):
            content[place] = random.choice(list(b'\0\n\r",;{}[]\\u\xff=9.'))
        try:
            outcomes.append(type(open_data(table(bytes(content), name))).__name__)
        except DataError as error:
            outcomes.append("DataError" if error.remedy else "no remedy")
    assert set(outcomes) == {"Splits", "DataError"}


def test_a_few_lost_files_are_bad_images_and_no_end(table):
    splits = open_data(table("path,label\na.jpg,cat\nlost.jpg,cat\n"), validation=0)
    assert len(splits.train) == 2


def test_formulas_are_only_names(table):
    assert open_data(table("path,label\na.jpg,=cmd()\nb.jpg,+1\n"), validation=0).classes == ("+1", "=cmd()")


def test_a_folder_of_manifests_by_split(table, tmp_path):
    (tmp_path / "only").mkdir()
    for name in ("train", "test"):
        (tmp_path / "only" / f"{name}.csv").write_text(f"path,label\n{tmp_path}/{name[1]}.jpg,cat\n")
    (tmp_path / "r.jpg").write_bytes(b"r")
    (tmp_path / "e.jpg").write_bytes(b"e")
    splits = open_data(tmp_path / "only", validation=0)
    assert [splits.train.read(0).content, splits.test.read(0).content] == [b"r", b"e"]


def test_the_real_manifest(real_data):
    splits = open_data(real_data / "imagenet_val" / "labels.csv", validation=0)
    names = (real_data / "imagenet_val" / "classes.txt").read_text().split()
    assert len(splits.train) == 300
    joined = open_data(real_data / "imagenet_val" / "labels.csv", validation=0, classes=names).train
    assert joined.classes == tuple(names)
    assert [names[target] for target in joined.targets] == [splits.classes[target] for target in splits.train.targets]
