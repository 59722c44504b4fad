"""What a person gets wrong: each mistake leaves with its exit code, a remedy, and no traceback."""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.each_row import each_row
from tests.models.tiny import TINY
from tests.weights.graphs import a_graph, write_graph
from vitrail.checksums import add_checksum
from vitrail.cli import main, run
from vitrail.errors import ConfigError, nearest
from vitrail.runtime import fault_injection
from vitrail.tasks.classification.classifier import create_classifier
from vitrail.weights.native import save_model

REAL_FOLDER = "photos"


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with two small classes, and a run of one step on the digits."""
    folder = tmp_path_factory.mktemp("mistakes")
    generator = np.random.default_rng(0)
    for name in ("ant", "bee"):
        (folder / REAL_FOLDER / name).mkdir(parents=True)
        for count in range(8):
            pixels = generator.integers(0, 256, (40, 48, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(folder / REAL_FOLDER / name / f"{count}.png")
    here = Path.cwd()
    os.chdir(folder)
    try:
        assert run(["train", "digits", "--steps", "1", "--out", "done", "--quiet"]) == 0
    finally:
        os.chdir(here)
    return folder


def nothing(folder: Path) -> None: ...


def empty_class(folder: Path) -> None:
    (folder / "hollow" / "cat").mkdir(parents=True)
    (folder / "hollow" / "dog").mkdir()


def one_class(folder: Path) -> None:
    (folder / "single" / "cat").mkdir(parents=True)
    Image.new("RGB", (8, 8)).save(folder / "single" / "cat" / "1.png")
    Image.new("RGB", (9, 8)).save(folder / "single" / "cat" / "2.png")


def broken_images(folder: Path) -> None:
    for name in ("ant", "bee"):
        (folder / "broken" / name).mkdir(parents=True)
        for count in range(3):
            (folder / "broken" / name / f"{count}.jpg").write_bytes(b"\xff\xd8\xff\xe0 this is no picture")


def foreign_weights(folder: Path) -> None:
    (folder / "torn.safetensors").write_bytes(b"\x10\x00\x00\x00\x00\x00\x00\x00{")


def damaged_model(folder: Path) -> None:
    whole = folder / "done" / "model"
    torn = folder / "torn-model"
    torn.mkdir()
    (torn / "config.json").write_text((whole / "config.json").read_text())
    content = (whole / "model.safetensors").read_bytes()
    (torn / "model.safetensors").write_bytes(content[: len(content) // 2])


def future_model(folder: Path) -> None:
    whole, later = folder / "done" / "model", folder / "later-model"
    later.mkdir()
    config = json.loads((whole / "config.json").read_text())
    (later / "config.json").write_text(json.dumps(add_checksum({**config, "format_version": 99})))
    (later / "model.safetensors").write_bytes((whole / "model.safetensors").read_bytes())


def unresized(folder: Path) -> None:
    shutil.copytree(folder / "done" / "model", folder / "unresized")
    config = folder / "unresized" / "config.json"
    told = json.loads(config.read_text())
    told["preprocessing"] |= {"resize": "none"}
    config.write_text(json.dumps(add_checksum(told)))


def bad_yaml(folder: Path) -> None:
    (folder / "twice.yaml").write_text("seed: 1\nseed: 2\n")
    (folder / "typo.yaml").write_text("optim: {learning_rate: 1}\n")


def manifests(folder: Path) -> None:
    (folder / "no_label.csv").write_text("file,kind,colour\na.png,ant,red\n")
    (folder / "missing.csv").write_text("path,label\nnowhere/a.png,ant\nnowhere/b.png,bee\n")


def foreign_classes(folder: Path) -> None:
    for name in ("zebra", "yak"):
        (folder / "others" / name).mkdir(parents=True)
        Image.new("L", (8, 8), 90).save(folder / "others" / name / "1.png")


def all_checkpoints_damaged(folder: Path) -> None:
    assert run(["train", "digits", "--steps", "2", "--out", "hurt", "--quiet"]) == 0
    (folder / "hurt" / "status.json").unlink()
    for each in (folder / "hurt" / "checkpoints").glob("step-*"):
        (each / "state.json").write_text("{}")


def several_labels(folder: Path) -> None:
    rows = [f"{REAL_FOLDER}/{kind}/{count}.png,{kind};insect" for kind in ("ant", "bee") for count in range(8)]
    (folder / "several.csv").write_text("path,label\n" + "\n".join(rows) + "\n")


def encoder(folder: Path) -> None:
    save_model(folder / "encoder", create_classifier(TINY["vit"], classes=(), in_channels=1))


def graphs(folder: Path) -> None:
    write_graph(folder / "graph.onnx")
    write_graph(folder / "digits.onnx", classes=tuple("0123456789"), channels=1)
    write_graph(folder / "fixed.onnx", size=(16, 16))
    (folder / "foreign.onnx").write_bytes(a_graph().SerializeToString())


def unwritable(folder: Path) -> None:
    (folder / "file-not-folder").write_text("")


TRAIN = "train digits --steps 1 --quiet "
PRETRAIN = "pretrain digits --steps 1 --quiet "
PROBE = "probe done digits --no-cache --quiet "
Mistake = tuple[str, Callable[[Path], None], int, str]
MISTAKES: dict[str, Mistake] = {
    "a mistyped verb": ("trian digits", nothing, 2, "train"),
    "a mistyped flag": ("train digits --epohcs 3", nothing, 2, "--epochs"),
    "a flag without its value": ("train digits --lr", nothing, 2, "lr"),
    "a word where a number belongs": ("train digits --epochs many", nothing, 2, "epochs"),
    "no data": ("train", nothing, 2, "digits"),
    "a mistyped setting": (TRAIN + "--set optim.lrr=1", nothing, 2, "did you mean 'lr'"),
    "a setting of the wrong type": (TRAIN + "--set optim.lr=fast", nothing, 2, "give a number"),
    "a setting out of range": (TRAIN + "--set optim.lr=0", nothing, 2, "above 0"),
    "a duplicate key in YAML": ("train digits --config twice.yaml", bad_yaml, 2, "duplicate key"),
    "a mistyped key in YAML": ("train digits --config typo.yaml", bad_yaml, 2, "learning_rate"),
    "a settings file that is not there": ("train digits --config nowhere.yaml", nothing, 2, "nowhere.yaml"),
    "two lengths at once": ("train digits --epochs 1 --steps 1", nothing, 2, "one of epochs, steps, time"),
    "a time that is none": ("train digits --time soon", nothing, 2, "10m"),
    "a mistyped recipe": (TRAIN + "--recipe finetun", nothing, 2, "did you mean 'finetune'"),
    "a mistyped model": (TRAIN + "--model vit-ti61", nothing, 2, "vit-ti16"),
    "a mistyped field of the model": (TRAIN + "--set model.changes.dept=2", nothing, 2, "depth"),
    "heads that do not divide the width": (TRAIN + "--set model.changes.heads=5", nothing, 2, "heads"),
    "a size that the patch does not divide": (TRAIN + "--model vit-ti16 --size 50", nothing, 2, "48"),
    "a micro-batch that does not divide": (TRAIN + "--set data.micro_batch=7", nothing, 2, "divisor"),
    "a flag of other tools": (TRAIN + "--learning-rate 3", nothing, 2, "it is called --lr here"),
    "a flag of other tools for a setting": (TRAIN + "--num-layers 3", nothing, 2, "--set model.changes.depth=VALUE"),
    "a device that is not there": (TRAIN + "--device cuda", nothing, 2, "cpu"),
    "both a model and weights": (TRAIN + "--model vit-ti16 --init done", nothing, 2, "one of them"),
    "a folder of another run": ("train digits --steps 1 --seed 9 --out done", nothing, 2, "seed"),
    "nothing to resume": ("train --resume nowhere", nothing, 2, "no run to resume"),
    "a mistyped folder of data": ("train photo --steps 1", nothing, 3, REAL_FOLDER),
    "an empty class": ("train hollow --steps 1", empty_class, 3, "there are no images in"),
    "a single class": ("train single --steps 1", one_class, 3, "class"),
    "only broken images": ("train broken --steps 1 --size 32 --workers 0 --out b1", broken_images, 3, "are bad"),
    "a manifest without its columns": ("train no_label.csv --steps 1", manifests, 3, "kind"),
    "a manifest of files that are not there": ("train missing.csv --steps 1 --out b2", manifests, 3, "nowhere"),
    "data of unknown classes": ("evaluate done others", foreign_classes, 3, "zebra"),
    "a split that is not there": ("evaluate done digits --split test", nothing, 3, "val"),
    "no objective": (PRETRAIN, nothing, 2, "--objective masked-patch|mae"),
    "a mistyped objective": (PRETRAIN + "--objective mea", nothing, 2, "mae"),
    "an argument that an objective does not have": (
        PRETRAIN + "--objective mae --set objective.changes.ratio=0.5",
        nothing,
        2,
        "did you mean 'mask_ratio'",
    ),
    "beit without a tokenizer": (PRETRAIN + "--objective beit", nothing, 2, "--objective tokenizer"),
    "a tokenizer that is a classifier": (
        PRETRAIN + "--objective beit --tokenizer done",
        nothing,
        4,
        "is not a tokenizer",
    ),
    "an architecture that cannot carry it": (
        PRETRAIN + "--objective mae --model swin-t --size 32 --set model.changes.width=24",
        nothing,
        2,
        "choose one of these architectures: vit, beit, cait",
    ),
    "labels for what needs none": (TRAIN + "--set objective.name=mae", nothing, 2, "vitrail pretrain"),
    "a run with labels that pretrain is to resume": (
        "pretrain --resume done",
        nothing,
        2,
        "with labels it is `vitrail train`",
    ),
    "predictions of an encoder": ("predict encoder photos", encoder, 2, "vitrail train DATA --init"),
    "an evaluation of an encoder": ("evaluate encoder digits --quiet", encoder, 2, "vitrail train DATA --init"),
    "a teacher that is an encoder": (TRAIN + "--teacher encoder", encoder, 2, "the teacher has no head"),
    "a mistyped teacher": (TRAIN + "--teacher don", nothing, 2, "done"),
    "a teacher of other classes": (
        "train photos --steps 1 --size 32 --teacher done",
        nothing,
        2,
        "does not know 2 of the 2",
    ),
    "a mistyped protocol": ("probe done digits --protocol knnn", nothing, 2, "linear"),
    "more neighbours than images": (PROBE + "--protocol knn --k 2000", nothing, 2, "give a k from 1 to"),
    "shots that are not numbers": (PROBE + "--protocol fewshot --shots few", nothing, 2, "1,5,10,25"),
    "more shots than images": (PROBE + "--protocol fewshot --shots 500", nothing, 3, "give shots up to"),
    "a probe of several labels an image": ("probe done several.csv --quiet", several_labels, 3, "vitrail train"),
    "a probe against no model": (PROBE + "--against don", nothing, 2, "done"),
    "a transfer to nothing": ("transfer done --out t1", nothing, 2, "no data"),
    "a transfer by a mistyped protocol": (
        "transfer done digits --out t2 --protocols kn",
        nothing,
        2,
        "did you mean 'knn'",
    ),
    "a transfer of two lengths": (
        "transfer done digits --out t3 --epochs 1 --steps 1",
        nothing,
        2,
        "one of epochs, steps",
    ),
    "a transfer into a run": ("transfer done digits --out done --protocols knn", nothing, 2, "is the folder of a run"),
    "an image that is not there": ("predict done photos/ant/99.png", nothing, 3, "99.png"),
    "a pattern that matches nothing": ("predict done photos/*.tif", nothing, 3, "matches"),
    "a torn safetensors file": ("evaluate torn.safetensors digits", foreign_weights, 4, "torn.safetensors"),
    "a torn model folder": ("evaluate torn-model digits", damaged_model, 4, "model.safetensors"),
    "a model of a later format": ("evaluate later-model digits", future_model, 4, "99"),
    "a mistyped model path": ("evaluate don digits", nothing, 2, "done"),
    "a run without a whole checkpoint": ("train digits --steps 2 --out hurt", all_checkpoints_damaged, 4, "state.json"),
    "no labels wanted": ("predict done photos --top 0", nothing, 2, "at least one"),
    "batches of nothing": ("evaluate done digits --batch 0", nothing, 2, "1 or more"),
    "a mean of other channels": ("evaluate done digits --mean 0.1,0.2", nothing, 2, "channel"),
    "a mean that is no number": ("predict done photos --mean grey", nothing, 2, "0.485,0.456,0.406"),
    "a crop that the patch does not divide": ("evaluate done digits --crop 9", nothing, 2, "10"),
    "a mistyped kind of preprocessing": (TRAIN + "--set model.preprocessing.meen=[0.5]", nothing, 2, "mean"),
    "a table of an unknown kind": ("predict done photos --out labels.xls", nothing, 2, "csv"),
    "a conversion into no layout": ("convert done copy", nothing, 2, "--to native, google"),
    "a mistyped layout": ("convert done copy --to gogle", nothing, 2, "gogle"),
    "a conversion onto itself": ("convert done done/model --to native", nothing, 2, "the source itself"),
    "a conversion onto other things": ("convert done photos --to native", nothing, 2, "is not a model folder"),
    "a name that is none of Google's": ("convert done copy --to google", nothing, 2, ".npz"),
    "names of classes that are not there": ("convert done copy --to native --classes no.txt", nothing, 2, "no.txt"),
    "a size that is none": ("convert done copy --to native --size big", nothing, 2, "big"),
    "pictures that timm cannot express": ("convert unresized copy --to timm", unresized, 4, "resize none"),
    "a comparison with more flags": ("convert --diff done done --force", nothing, 2, "leave the other flags out"),
    "a comparison with nothing": ("convert --diff done don", nothing, 2, "did you mean 'done'"),
    "a mistyped kind of export": ("export done --to onxx", nothing, 2, "onnx"),
    "8 bits in a layout of weights": ("export done --to timm --int8", nothing, 2, "leave --int8 out"),
    "a name that is none of ONNX": ("export done --out graph.bin", nothing, 2, "ends in .onnx"),
    "an export over another's file": ("export done --out foreign.onnx", graphs, 2, "--force"),
    "an export of an export": ("export graph.onnx --out other.onnx", graphs, 2, "the model that it was made from"),
    "a tolerance that is none": ("export done --tolerance 2", nothing, 2, "between 0 and 1"),
    "an export where nothing can be written": ("export done --out file-not-folder/a/b.onnx", unwritable, 6, "--out"),
    "a training from an export": (TRAIN + "--init digits.onnx", graphs, 2, "that it was exported from"),
    "an explanation of an export": (
        "explain graph.onnx photos --out e1",
        graphs,
        2,
        "occlusion, which works for any model",
    ),
    "an inspection of an export": ("inspect graph.onnx --out i1", graphs, 2, "that it was exported from"),
    "an export for other images": ("predict fixed.onnx photos --crop 32", graphs, 2, "--size 32x32"),
    "a graph of someone else's": ("predict foreign.onnx photos", graphs, 4, "vitrail export MODEL"),
    "an output folder that cannot be made": (TRAIN + "--out file-not-folder/run", unwritable, 6, "--out"),
}


# those that build a model, train one or open a graph
SLOW = {name for name, (_, make, *_) in MISTAKES.items() if make in (graphs, encoder, all_checkpoints_damaged)} | {
    "only broken images",
    "an argument that an objective does not have",
    "an architecture that cannot carry it",
    "a teacher of other classes",
}


@each_row("name", MISTAKES, quick=MISTAKES.keys() - SLOW)
def test_a_mistake_has_its_exit_code_its_remedy_and_no_traceback(name, place, monkeypatch, capsys) -> None:
    command, make, code, words = MISTAKES[name]
    monkeypatch.chdir(place)
    make_once(make, place)
    capsys.readouterr()
    found = run(command.split())
    said = capsys.readouterr()
    assert found == code, said.err
    assert "error: " in said.err
    assert "hint: " in said.err
    assert words in said.err
    assert "Traceback" not in said.err
    assert said.out == "", "stdout carries results only"


def make_once(make: Callable[[Path], None], folder: Path) -> None:
    mark = folder / f".{make.__name__}"
    if not mark.exists():
        make(folder)
        mark.touch()


@pytest.mark.slow
def test_a_full_disk_while_saving_is_exit_6_and_the_same_command_continues(place, monkeypatch, capsys) -> None:
    monkeypatch.chdir(place)
    monkeypatch.setattr(fault_injection, "_passed", {})
    command = ["train", "digits", "--steps", "2", "--out", "full", "--quiet"]
    with pytest.MonkeyPatch.context() as broken:
        broken.setenv(fault_injection.VARIABLE, "checkpoint.after_tensors:enospc")
        assert run(command) == 6
    said = capsys.readouterr().err
    assert "the disk is full" in said
    assert "Traceback" not in said
    assert run(command) == 0


def test_help_names_the_flags(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["train", "--help"]) == 0
    assert "--dry-run" in capsys.readouterr().out


@pytest.mark.parametrize(("before", "after"), [({}, "1000"), ({"GOMP_SPINCOUNT": "7"}, "7")])
def test_waiting_threads_are_told_to_give_up_their_core_before_torch_is_there(before: dict, after: str) -> None:
    printed = "atexit.register(lambda: print(os.environ['GOMP_SPINCOUNT']))"
    code = f"import atexit, os; from vitrail.cli import main; {printed}; main(['--version'])"
    clean = {name: value for name, value in os.environ.items() if name != "GOMP_SPINCOUNT"}
    found = subprocess.run([sys.executable, "-c", code], env={**clean, **before}, capture_output=True, text=True)
    assert found.returncode == 0, found.stderr
    assert found.stdout.split()[-1] == after


SYSTEM = [
    (MemoryError(), "there is not enough memory", "give a smaller --batch"),
    (
        RuntimeError("DefaultCPUAllocator: can't allocate memory"),
        "there is not enough memory",
        "give a smaller --batch",
    ),
    (OSError(errno.EMFILE, os.strerror(errno.EMFILE)), "too many files are open", "raise the limit (ulimit -n 1024)"),
    (OSError(errno.EIO, os.strerror(errno.EIO), "a.npy"), "a disk cannot be read or written", "check the disk"),
]


@each_row("error, words, remedy", SYSTEM)
def test_what_the_system_refuses_is_exit_6_with_a_remedy(monkeypatch, capsys, error, words, remedy) -> None:
    def fail(*arguments: object, **options: object) -> None:
        raise error

    monkeypatch.setattr("vitrail.verbs.options.parse", fail)
    assert run(["evaluate", "model", "data"]) == 6
    said = capsys.readouterr().err
    assert f"error: {words}" in said
    assert f"hint: {remedy}" in said


def test_debug_shows_the_traceback(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(place)
    with pytest.raises(ConfigError, match="nowhere"):
        main(["evaluate", "nowhere", "digits", "--debug"])


def test_of_a_thousand_names_the_first_are_listed():
    names = [f"class {number:03}" for number in range(1000)]
    assert nearest("zebra", names).endswith("class 010, class 011 and 988 more")
    assert nearest("zebra", names[:100]).endswith("class 099")
