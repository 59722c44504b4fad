"""What every verb prints with ``--json`` is what docs/reference/json.md says: the same keys, of the same types."""

from __future__ import annotations

import contextlib
import io
import json
import math
import re
import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from cyclopts import App
from PIL import Image

import vitrail
from tests.each_row import each_row
from tests.studies.test_run import TINY
from tests.tasks.dense_models import create, create_queries
from tests.test_pages import ROOT
from tests.weights.hub_cache import fill_cache, use_cache
from tests.weights.kinds import a_model
from tests.weights.test_names import OTHER
from vitrail.analysis.explanation import METHODS
from vitrail.cli import build_app, run
from vitrail.evaluation.corruptions import CORRUPTIONS
from vitrail.exports.sidecar import write_sums
from vitrail.reports.metric_names import METRICS, OF_NUMBERS
from vitrail.tasks.regression.task import Regressor
from vitrail.verbs.printing import one_line

PAGE = ROOT / "docs/reference/json.md"
WITHOUT = {"serve", "study write"}
LINES = ("predict", "explain", "search")  # print several objects
TYPES = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "array": (list,),
    "object": (dict,),
    "null": (type(None),),
    "any": (str, int, float, bool, list, dict, type(None)),
}
NAMES = {  # what the placeholders of the page stand for; any other for any name
    "figure": [*METRICS, *(f"(?:age|size|mass)_{figure}" for figure in OF_NUMBERS)],
    "corruption": CORRUPTIONS,
    "method": [*METHODS, "random"],
    "map": ["rollout", "gradient", "best_head", r"layer_\d+"],
    "n": [r"\d+"],
    "end": ["low", "high"],
    "when": ["before", "after"],
    "way": ["before", "after", "bf16"],
    "test": ["deletion", "insertion"],
    "corner": ["[xy][01]"],
    "split": ["train", "val", "test"],
    "protocol": ["linear", "knn", "fewshot", "finetune"],
}
TINY_VIT = "--set 'model.changes={patch_size: 4, width: 16, depth: 1, heads: 2, mlp_width: 32}' --size 8"
SHORT = f"photos --model vit-ti16 {TINY_VIT} --steps 2 --set compute.tune=false"
COMMANDS = {  # section of the page -> commands
    "train": [f"train {SHORT} --out trained"],
    "train --folds": [f"train {SHORT} --folds 2 --out folds"],
    "pretrain": [f"pretrain {SHORT} --objective dino --batch 4 --out pretrained"],
    "train --dry-run": [f"train {SHORT} --dry-run"],
    "pretrain --dry-run": [f"pretrain {SHORT} --objective mae --batch 4 --dry-run"],
    "train --dry-run --devices": ["train photos --dry-run --devices 8xH100 --model vit-ti16 --steps 10"],
    "evaluate": [
        "evaluate model photos",
        "evaluate numbers numbers.csv",
        "evaluate model photos --corruptions --per-class --tta flip",
    ],
    "probe": [
        "probe model photos --no-cache --against model",
        "probe model photos --no-cache --protocol fewshot --shots 1,2",
    ],
    "transfer": ["transfer model photos --protocols knn --k 2 --no-cache --out transferred"],
    "predict with a classifier": ["predict model photos broken.png"],
    "predict with a detector": ["predict detection photos/val", "predict instances photos/val"],
    "predict with a segmenter": ["predict segmentation photos/val"],
    "predict with a panoptic segmenter": ["predict panoptic photos/val"],
    "predict with a model of numbers": ["predict numbers photos/val"],
    "embed": [
        "embed model photos --out features.npy",
        "embed model photos --parts embedded",
        "embed model photos --index embedded.index",
    ],
    "search": ["search index photos/val/ant --top 2 --model model"],
    "search --copies": ["search index --copies 0.5"],
    "explain": [
        "explain model photos/val/ant --out explained",
        "explain detection photos/val/ant --out explained --method gradient",
    ],
    "explain --faithfulness": ["explain model photos/val/ant --faithfulness"],
    "explain --masks": ["explain model photos/val/ant --masks masks"],
    "inspect": ["inspect model --out inspected --data photos", "inspect model --against model --out pair"],
    "convert": ["convert model timm.safetensors --to timm"],
    "export --to timm": ["export model --out exported.safetensors --to timm"],
    "push": ["push model hf:owner/name --dry-run"],
    "convert --diff": ["convert model model --diff"],
    "export": ["export model --out model.pt2 --to program --check photos --images 3"],
    "check": ["check model.onnx"],
    "check-parts": ["check-parts parts"],
    "data check": ["data check photos --model model"],
    "data shard": ["data shard photos shards"],
    "data index": ["data index archives"],
    "models": ["models"],
    "models NAME": ["models vit-ti16", "models swin-t"],
    "settings": ["settings", "settings save --recipe deit"],
    "doctor": ["doctor"],
    "doctor --tune show": ["doctor --tune show"],
    "doctor --tune clear": ["doctor --tune clear"],
    "weights get": [f"weights get hf:{OTHER}"],
    "study": ["study --config mine.yaml --out study --jobs 1"],
    "study --dry-run": ["study --config mine.yaml --out study --jobs 1 --dry-run"],
    "study work": ["study work study"],
    "study report": ["study report study"],
}
CODES = {"predict model photos broken.png": 3}  # of all others 0
QUICK = [
    "evaluate",
    "probe",
    "predict with a classifier",
    "embed",
    "search",
    "convert",
    "convert --diff",
    "check",
    "check-parts",
]
QUICK += ["train", "data check", "data shard", "data index", "models NAME", "settings", "doctor", "doctor --tune show"]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with pictures, models and files, in which the commands run."""
    place = tmp_path_factory.mktemp("place")
    draw = np.random.default_rng(0)
    rows = ["path,age,size,mass"]
    for split, name, number in np.ndindex(2, 3, 4):
        path = place / "photos" / ("train", "val")[split] / ("ant", "bee", "cat")[name] / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(draw.integers(0, 255, (16, 16, 3), np.uint8)).save(path)
        rows.append(f"{path.relative_to(place)},{','.join(map(str, draw.random(3)))}")
    (place / "numbers.csv").write_text("\n".join(rows))
    (place / "broken.png").write_bytes(b"no picture")
    (place / "masks").mkdir()
    for path in (place / "photos/val/ant").iterdir():
        Image.fromarray(np.eye(16, dtype=np.uint8) * 255).save(place / "masks" / path.name)
    (place / "model.onnx").write_bytes(b"a graph")
    write_sums(place / "model.onnx", [place / "model.onnx"])
    (place / "mine.yaml").write_text(yaml.safe_dump(TINY))
    models = {task: create(task, classes=("background", "cat", "dog")) for task in ("detection", "segmentation")}
    models |= {task: create_queries(task) for task in ("instances", "panoptic")}
    plain = a_model()
    models |= {"model": plain, "numbers": Regressor(plain.backbone, ("age", "size", "mass"), plain.preprocessing)}
    for name, model in models.items():
        vitrail.save(model, place / name)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        use_cache(place / "hub", patch)
        fill_cache(place / "hub", OTHER)
        assert run(["data", "shard", "photos", "archives", "--quiet"]) == 0
        for split in ("train", "val"):
            shutil.rmtree(place / "archives" / split / "index")
        assert run(["predict", "model", "photos", "--parts", "parts", "--quiet"]) == 0
        assert run(["embed", "model", "photos", "--index", "index", "--quiet"]) == 0
        yield place


def read_page() -> dict[str, dict[str, str]]:
    """The type of each key of the page, by command."""
    found = {}
    for section in re.split("^## ", PAGE.read_text(), flags=re.MULTILINE)[1:]:
        heading, text = section.split("\n", 1)
        keys = dict(re.findall(r"^\| `(.+?)` \| (.+?) \| ", text, re.MULTILINE))
        found |= {name: keys for name in find_commands(heading)}
    return found


def find_commands(heading: str) -> list[str]:
    first, *others = re.findall("`(.+?)`", heading)
    return [heading.replace("`", "")] if heading != f"`{first}`" and not others else [first, *others]


def to_pattern(key: str) -> str:
    """A regular expression of the names that a key of the page stands for."""
    parts = re.split("<(.+?)>", key.removesuffix("?").removesuffix("[]"))
    names = [f"(?:{'|'.join(NAMES.get(part, ['.+']))})" if place % 2 else part for place, part in enumerate(parts)]
    return "".join(names)


def differences(found: dict[str, Any], keys: dict[str, str]) -> list[str]:
    """Where an object differs from the keys and types of the page."""
    own = {key: kind for key, kind in keys.items() if "." not in key}
    inner: dict[str, dict[str, str]] = {}
    for key, kind in keys.items():
        outer, dot, rest = key.partition(".")
        if dot:
            inner.setdefault(outer, {})[rest] = kind
    names = sorted([*own, *inner], key=lambda key: "<" in key)
    wrong = [f"{key} is missing" for key in names if not key.endswith("?") and "<" not in key]
    wrong = [each for each in wrong if each.removesuffix(" is missing").removesuffix("[]") not in found]
    for key, value in found.items():
        name = next((name for name in names if re.fullmatch(to_pattern(name), key)), None)
        if name is None:
            wrong.append(f"{key} is not on the page")
        elif name in inner:
            for each in value if name.endswith("[]") else [value]:
                wrong += [f"{key}: {line}" for line in differences(each, inner[name])]
        elif type(value) not in [kind for word in own[name].split(r" \| ") for kind in TYPES[word]]:
            wrong.append(f"{key} is {value!r}, no {own[name]}")
    return wrong


def refuse(constant: str) -> None:
    raise ValueError(f"{constant} is no JSON")


@each_row("section", COMMANDS, quick=QUICK)
def test_every_object_has_the_keys_and_types_of_the_page(section, place):
    keys, filled, codes = read_page()[section], set[str](), dict[str, int]()
    for command in COMMANDS[section]:
        out, words = io.StringIO(), shlex.split(command)
        with contextlib.redirect_stdout(out):
            code = run([*words, "--json"])
        codes[command] = code
        lines = out.getvalue().splitlines()
        assert len(lines) == 1 or (lines and words[0] in LINES and "--faithfulness" not in words), (code, lines)
        for line in lines:
            found = json.loads(line, parse_constant=refuse)
            assert differences(found, keys) == [], command
            filled |= {key for key, value in found.items() if value}
    assert {key.partition("[]")[0] for key in keys if "[]" in key} <= filled, section
    assert codes == {command: CODES.get(command, 0) for command in codes}


def list_verbs(app: App, group: str = "") -> Iterator[tuple[str, App]]:
    for name, each in app.resolved_commands().items():
        if not name.startswith("-"):
            if each.default_command is not None:
                yield group + name, each
            yield from list_verbs(each, f"{group}{name} ")


def test_every_verb_has_the_option_and_a_section():
    verbs = dict(list_verbs(build_app()))
    assert verbs.keys() >= WITHOUT
    options = {
        name: [word for each in app.assemble_argument_collection() for word in each.names]
        for name, app in verbs.items()
    }
    assert {name for name, words in options.items() if "--json" not in words} == WITHOUT
    pages = read_page()
    assert pages.keys() == COMMANDS.keys()
    assert [
        name for name in verbs.keys() - WITHOUT if not any(f"{each} ".startswith(f"{name} ") for each in pages)
    ] == []


def test_undefined_numbers_are_null():
    assert one_line({"a": math.nan, "b": {"c": [math.inf, 1.5]}}) == '{"a": null, "b": {"c": [null, 1.5]}}'
