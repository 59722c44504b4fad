"""Data sets of the hub, on a mirror: what is downloaded of each layout, and that it opens without a request afterwards."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from huggingface_hub import constants

from tests.each_row import each_row
from tests.looked_at import picture
from tests.weights.hub_mirror import COMMIT, serve_mirror
from vitrail.cli import run
from vitrail.data.sources.hub import choose_files
from vitrail.data.sources.open import find_data, open_data, resolve_name
from vitrail.data.sources.source import list_splits
from vitrail.errors import ConfigError, DataError, VitrailError
from vitrail.hub import shorten
from vitrail.untrusted.yaml_documents import parse_yaml
from vitrail.weights import load

# as `datasets` writes it
FEATURES = {"img": {"_type": "Image"}, "label": {"names": ["wasp", "ant"], "_type": "ClassLabel"}}
TWO = """---
license: mit
configs:
- config_name: small
  data_files:
  - split: train
    path: small/train-*
  - split: validation
    path: [small/validation-*]
  - split: unlabeled
    path: small/unlabeled-*
- config_name: large
  data_files: {train: large/train-*}
---
# Ants
"""


def encode(seed: int) -> bytes:
    buffer = io.BytesIO()
    picture(8, 8, seed).save(buffer, "PNG")
    return buffer.getvalue()


class Hub:
    """A mirror that is served, and a cache: ``write`` adds files, ``asked`` are the paths that were asked for."""

    def __init__(self, root: Path, asked: list[str]) -> None:
        self.root, self.asked = root, asked

    def write(self, name: str, files: dict[str, bytes | str]) -> None:
        for path, content in {**files, ".gitattributes": "*.parquet filter=lfs"}.items():
            place = self.root / "datasets/owner" / name / path
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(content.encode() if isinstance(content, str) else content)

    def write_parquet(self, name: str, *paths: str, **columns: list) -> None:
        for number, path in enumerate(paths):
            images = [{"bytes": encode(row + 9 * number), "path": f"{row}.png"} for row in range(4)]
            table = pa.table(columns or {"img": images, "label": [0, 1, 0, 1]})
            features = {column: FEATURES[column] for column in table.column_names if column in FEATURES}
            table = table.replace_schema_metadata({"huggingface": json.dumps({"info": {"features": features}})})
            self.write(name, {path: b""})
            pq.write_table(table, self.root / "datasets/owner" / name / path)

    def files(self) -> set[str]:
        return {path.rpartition(f"{COMMIT}/")[2] for path in self.asked if "/resolve/" in path} - {".gitattributes"}


@pytest.fixture
def hub(tmp_path, monkeypatch):
    with serve_mirror(tmp_path / "mirror") as (address, asked):
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
        template = constants.HUGGINGFACE_CO_URL_TEMPLATE.replace(constants.ENDPOINT, address)
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        monkeypatch.setattr(constants, "ENDPOINT", address)
        yield Hub(tmp_path / "mirror", asked)


def count(data: str) -> dict[str, int]:
    return {name: len(part) for name, part in list_splits(open_data(data, validation=0)).items()}


def test_of_two_configurations_the_named_one_is_downloaded_once_and_opens_without_the_hub(hub, monkeypatch, capsys):
    hub.write("ants", {"README.md": TWO, "ants.py": "raise SystemExit"})
    splits = [f"{name}-00000-of-00001.parquet" for name in ("train", "validation", "unlabeled")]
    hub.write_parquet("ants", *(f"small/{name}" for name in splits), "large/train-00000-of-00001.parquet")
    with pytest.raises(ConfigError, match="has 2 configurations: small, large") as caught:
        open_data("hf:datasets/owner/ants")
    assert "name one of them, as hf:datasets/owner/ants/small" in str(caught.value)
    first = open_data("hf:datasets/owner/ants/small")
    assert first.layout.startswith(f"hf:datasets/owner/ants/small@{COMMIT}, without unlabeled (1 file): ")
    assert first.classes == ("wasp", "ant")  # in the order of the metadata
    assert [len(first.train), len(first.val)] == [4, 4]
    assert first.train.read(1).content == encode(1)
    assert hub.files() == {"README.md", *(f"small/{name}" for name in splits[:2])}
    said = capsys.readouterr().err
    assert "download hf:datasets/owner/ants/small, 2 files, " in said
    assert "licence mit" in said
    hub.asked.clear()
    again = open_data("hf:datasets/owner/ants/small")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    offline = open_data("hf:datasets/owner/ants/small")
    assert hub.asked == []
    assert first.layout == again.layout == offline.layout
    assert first.train.keys.digest() == offline.train.keys.digest()


def test_an_interrupted_download_is_completed_and_never_taken_for_the_data(hub, tmp_path, monkeypatch):
    hub.write_parquet("ants", "data/train-0.parquet", "data/train-1.parquet")
    assert count("hf:datasets/owner/ants") == {"train": 8}
    (lost,) = (tmp_path / "cache").glob("*/snapshots/*/data/train-1.parquet")
    lost.resolve().unlink()
    lost.unlink()
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(DataError, match="cannot be downloaded: HF_HUB_OFFLINE is set") as caught:
        open_data("hf:datasets/owner/ants")
    assert "vitrail data check hf:datasets/owner/ants" in str(caught.value)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    hub.asked.clear()
    assert count(f"hf:datasets/owner/ants@{COMMIT}") == {"train": 8}
    assert hub.files() == {"data/train-1.parquet"}


def test_folders_of_images_open_with_the_labels_of_their_metadata_or_of_their_folders(hub):
    png = {f"{number}.png": encode(number) for number in range(2)}
    rows = "file_name,label\n0.png,ant\n1.png,wasp\n"
    tables = {f"{split}/metadata.csv": rows for split in ("train", "test")}
    card = {"README.md": "---\nlicense: mit\n---\n", "archive.zip": "x"}
    hub.write("table", {f"{split}/{name}": png[name] for split in ("train", "test") for name in png} | tables | card)
    hub.write(
        "folders",
        {f"data/{split}/{kind}/{name}": png[name] for split in ("train", "dev") for kind in "ab" for name in png},
    )
    assert count("hf:datasets/owner/table") == {"train": 2, "test": 2}
    table = open_data("hf:datasets/owner/table")
    assert table.classes == ("ant", "wasp")
    assert ", without 1 .zip: " in table.layout
    assert not any("archive" in path for path in hub.files())
    assert count("hf:datasets/owner/folders") == {"train": 4, "val": 4}


def test_a_conversion_to_parquet_has_a_configuration_in_each_folder(hub):
    hub.write_parquet("ants", "a/train/0000.parquet", "a/partial-test/0000.parquet", "b/test/0000.parquet")
    assert count("hf:datasets/owner/ants/a") == {"train": 4}
    assert "without partial-test (1 file)" in open_data("hf:datasets/owner/ants/a").layout
    assert hub.files() == {"a/train/0000.parquet"}
    with pytest.raises(ConfigError, match="has 2 configurations: a, b"):
        open_data("hf:datasets/owner/ants")


def test_columns_are_named_as_those_of_a_local_table(hub):
    hub.write_parquet("ants", "train.parquet", shown=[b"1", b"2"], breed=["b", "a"])
    with pytest.raises(DataError, match="no label column; its columns are 'shown', 'breed'"):
        open_data("hf:datasets/owner/ants")
    assert open_data(find_data("hf:datasets/owner/ants", {"label": "breed"})).classes == ("a", "b")


CARD = "---\nconfigs:\n- config_name: default\n  data_files: "
FAULTS = {
    "hf:owner/name": "is not the name of a data set on the hub",
    "hf:datasets/name": "is not the name of a data set on the hub",
    "hf:datasets/owner/../name": "is not the name of a data set on the hub",
    "hf:datasets/owner/nothing": "cannot be downloaded from the hub: .*check owner, name and revision",
    f"hf:datasets/owner/text@{'0' * 40}": "cannot be downloaded from the hub: .*check owner, name and revision",
    "hf:datasets/owner/gated": "cannot be downloaded from the hub: .*accept its terms on its page",
    "hf:datasets/owner/script": "has no images, tables or .tar; .* it has 1 .py, 1 .zip.*refs/convert/parquet",
    "hf:datasets/owner/text": "has no path column; its columns are 'text', 'label'",
    "hf:datasets/owner/text/other": "has 1 configuration: default.*as hf:datasets/owner/text/default",
    "hf:datasets/owner/swapped": "cannot be opened as the README means: data/test-0.parquet has another split",
    "hf:datasets/owner/mixed": "cannot be opened as the README means: data/b.parquet is among them",
    "hf:datasets/owner/extra": "cannot be opened as the README means: data/train_extra-0.parquet is among them",
    "hf:datasets/owner/gone": "cannot be opened as the README means: there are none",
    "hf:datasets/owner/broken": "the fields of .*README.md cannot be read",
    "hf:datasets/owner/stamp": "the fields of .*README.md cannot be read",
    "hf:datasets/owner/pictures": "cannot be opened as the README means: extra/a/0.png is among them",
    "hf:datasets/owner/hostile/x": r"has 1 configuration: \?\[31mred",
    "hf:datasets/owner/boxes": "no label column; its columns are 'img', 'objects'",
}


def test_what_cannot_be_opened_says_why_and_what_to_do(hub):
    hub.write("gated", {"README.md": "x", "train.csv": "path,label"})
    hub.write("script", {"script.py": "raise SystemExit", "images.zip": "x", "dataset_infos.json": "{}"})
    hub.write("text", {"README.md": CARD + "train.parquet\n---\n"})
    hub.write_parquet("text", "train.parquet", text=["good", "bad"], label=[0, 1])
    hub.write("swapped", {"README.md": CARD + "{train: data/test-*}\n---\n"})
    hub.write_parquet("swapped", "data/test-0.parquet")
    hub.write("mixed", {"README.md": CARD + "data/a.parquet\n---\n"})
    hub.write_parquet("mixed", "data/a.parquet", "data/b.parquet")
    hub.write("extra", {"README.md": CARD + "{train: data/train-*, train_extra: data/train_extra-*}\n---\n"})
    hub.write_parquet("extra", "data/train-0.parquet", "data/train_extra-0.parquet")
    hub.write("gone", {"README.md": CARD + "data/*.parquet\n---\n"})
    hub.write("broken", {"README.md": "---\na: [\n---\n"})
    hub.write("stamp", {"README.md": "---\na: !!timestamp 99\n---\n"})
    hub.write("pictures", {"README.md": CARD + "{train: train/**, test: test/**, extra: extra/**}\n---\n"})
    hub.write("pictures", {f"{split}/a/0.png": encode(0) for split in ("train", "test", "extra")})
    hub.write("hostile", {"README.md": '---\nconfigs:\n- config_name: "\\e[31mred"\n  data_files: "*.csv"\n---\n'})
    hub.write_parquet("boxes", "train.parquet", img=[b"1"], objects=[[{"bbox": [0, 0, 1, 1], "category": 0}]])
    found = {}
    for data in FAULTS:
        with pytest.raises(VitrailError) as caught:
            open_data(data)
        found[data] = " ".join(str(caught.value).split())
    assert not {data: said for data, said in found.items() if not re.search(FAULTS[data], said) or "\x1b" in said}


@each_row(
    "files, patterns",
    [
        ('data_files: "*.csv"', ["*.csv"]),
        ("data_files: [b/train-*]", ["b/train-*"]),
        ("data_files: train-*\ndata_dir: b", ["b/train-*"]),
        ("data_dir: b", ["b/*"]),
        ('data_files: "./**/*.csv"', ["**.csv"]),
        ("data_files: {train: a/train-*, test: [a/test-*]}", ["a/train-*", "a/test-*"]),
        ("data_files: [{split: train, path: [c/train-*]}, {split: extra, path: c/extra-*}]", ["c/train-*"]),
    ],
)
def test_every_form_of_data_files_is_read(files, patterns):
    names = ["train.csv", *(f"{name}-0.parquet" for name in ("a/train", "a/test", "b/train", "c/train", "c/extra"))]
    card = {"configs": [{"config_name": "x", **parse_yaml(files)}]}
    assert choose_files("hf:datasets/owner/name", None, names, card)[0] == patterns


@pytest.mark.slow
def test_a_training_names_its_commit_and_an_evaluation_without_the_hub_knows_its_images(
    hub, tmp_path, monkeypatch, capsys
):
    hub.write_parquet("ants", *(f"data/train-{number}.parquet" for number in range(5)))
    monkeypatch.chdir(tmp_path)
    small = [
        *("--model", "vit-ti16", "--init", "none", "--size", "32", "--set", "model.changes.depth=1"),
        "--device",
        "cpu",
    ]
    assert run(["train", "hf:datasets/owner/ants", "--steps", "1", "--batch", "4", *small, "--quiet"]) == 0
    (folder,) = Path("runs").glob("*-ants-vit-ti16")
    assert f"data     hf:datasets/owner/ants@{COMMIT}: .parquet files" in (folder / "log.txt").read_text()
    provenance = load(folder, log=lambda line: None).provenance
    assert provenance["data"] == "hf:datasets/owner/ants"
    assert COMMIT in provenance["layout"]
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    hub.asked.clear()
    capsys.readouterr()
    assert run(["evaluate", "latest", "hf:datasets/owner/ants", "--json"]) == 0
    shown = capsys.readouterr()
    assert "split    held out of train when the model was trained: 4 images" in shown.err
    assert json.loads(shown.out)["images"] == 4
    assert run(["predict", "latest", "hf:datasets/owner/ants", "--out", "labels.csv"]) == 0
    assert len(Path("labels.csv").read_text().splitlines()) == 1 + 20
    assert hub.asked == []


def test_names_of_the_hub_are_valid_in_any_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert resolve_name("hf:datasets/owner/name") == "hf:datasets/owner/name"
    assert resolve_name("s3://place/shards") == "s3://place/shards"
    assert resolve_name("photos") == str(tmp_path.resolve() / "photos")


def test_where_a_readme_names_no_split_the_names_of_files_do(hub, capsys):
    card = '\ufeff---\nlicense: "\\e[2Jmit"\nconfigs:\n- config_name: default\n  data_dir: data\n---\n'
    hub.write("ants", {"README.md": card})
    hub.write_parquet("ants", "data/train-0.parquet", "data/test-0.parquet", "other/train-0.parquet")
    assert count("hf:datasets/owner/ants") == {"train": 4, "test": 4}
    assert "licence ?[2Jmit, once" in capsys.readouterr().err


def test_a_name_is_short_without_its_revision():
    names = [
        "photos/ants",
        "ants.parquet",
        "hf:datasets/owner/ants@refs/convert/parquet",
        "hf:datasets/owner/x/ants@v1.0",
    ]
    assert {shorten(name) for name in names} == {"ants"}
