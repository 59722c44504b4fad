"""A flipped bit in any file that vitrail wrote is refused, named, or changes nothing."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import vitrail
from tests.slow import few_or_nightly
from tests.weights.graphs import write_graph
from tests.weights.kinds import a_model
from vitrail.data.preprocessing import Preprocessing
from vitrail.errors import VitrailError
from vitrail.files import read_sealed
from vitrail.models.tokenizer import Tokenizer, TokenizerConfig
from vitrail.runs import checkpoint
from vitrail.runs.folder import RunFolder
from vitrail.weights.description import describe
from vitrail.weights.native import save_model
from vitrail.weights.onnx.digest import seal_onnx
from vitrail.weights.tokenizers import load_tokenizer, save_tokenizer
from vitrail.workflows.convert import convert
from vitrail.workflows.export import export_model

IMAGES = torch.randn(2, 3, 16, 16, generator=torch.Generator().manual_seed(0))  # (B, C, H, W)
Say = Callable[[str], None]


@dataclass(frozen=True)
class Kind:
    """Files that are written together, and the function that reads them: everything that depends on their content."""

    name: str
    files: list[Path]
    read: Callable[[Say], Any]


def read_model(path: Path) -> Callable[[Say], Any]:
    def read(say: Say) -> Any:
        model = vitrail.weights.load(path, log=say)
        with torch.inference_mode():
            answers = [output.numpy().tobytes() for output in (model(IMAGES), model.features(IMAGES))]
        return answers, describe(model)

    return read


def read_tokenizer(path: Path) -> Callable[[Say], Any]:
    def read(say: Say) -> Any:
        saved = load_tokenizer(path, say)
        weights = {name: tensor.numpy().tobytes() for name, tensor in saved.tokenizer.state_dict().items()}
        return weights, saved.tokenizer.config, saved.preprocessing, saved.provenance

    return read


def read_run(path: Path) -> Callable[[Say], Any]:
    """What a resumed run and its report read."""
    folder = RunFolder(path)

    def read(say: Say) -> Any:
        for damage in folder.find_damage():
            say(damage)
        for name in ("status.json", "split.json"):
            if read_sealed(path / name) is None:
                say(f"{name} is damaged")
        saved = checkpoint.load_newest(folder.checkpoints)
        for refused in saved.refused:
            say(refused)
        weights = {
            group: {name: tensor.numpy().tobytes() for name, tensor in named.items()}
            for group, named in saved.tensors.items()
        }
        status = [folder.status().get(name) for name in ("state", "steps", "seconds", "figures")]
        split = [(read_sealed(path / "split.json") or {}).get(name) for name in ("seed", "images", "held_out")]
        records = folder.metrics(), folder.timing(), status, split
        return folder.read_config(), records, saved.step, weights, saved.state

    return read


def write_kinds(place: Path, *, exports: bool) -> Iterator[Kind]:
    """Every kind of file, as small as it can be; with ``exports``, also a graph that is exported, which takes seconds."""
    model = a_model(depth=1)
    model.temperature = 1.5
    native = save_model(place / "native", model, provenance={"data": "dögs"})
    written = [native, save_model(place / "single.safetensors", model)]
    written.append(write_graph(place / "graph.onnx"))
    seal_onnx(written[-1])
    if exports:
        written.append(export_model(native, place / "export.onnx", images=2, say=lambda line: None).path)
    for layout, name in {"timm": "timm", "google": "a.npz", "huggingface": "hf"}.items():
        source = save_model(place / "eps", a_model(depth=1, norm_eps=1e-12, gelu="exact")) if name == "hf" else native
        written.append(convert(source, place / layout / name, layout, force=True).path)
    written.append(convert(native, place / "sidecar" / "b.safetensors", "timm", force=True).path)
    for path in written:
        beside = [path, *path.parent.glob("*.json")] if path.parent != place else [path]
        yield Kind(path.name, sorted(path.iterdir()) if path.is_dir() else beside, read_model(path))
    tokenizer = Tokenizer(TokenizerConfig(in_channels=1, patch_size=(2, 2), width=4, levels=(3, 3)))
    path = save_tokenizer(place / "tokenizer", tokenizer, Preprocessing(size=(4, 4), mean=(0.1,), std=(0.2,)))
    yield Kind("tokenizer", sorted(path.iterdir()), read_tokenizer(path))
    yield train_run(place / "run")


def train_run(path: Path) -> Kind:
    arrays = np.random.default_rng(0).integers(0, 256, (30, 8, 8, 1), dtype=np.uint8), np.arange(30) % 3
    changes = "model.changes={width: 8, depth: 1, heads: 1, mlp_width: 8, patch_size: [4, 4]}"
    settings = ("model.name=vit-ti16", changes, "data.batch=8", "save.log_every=1", "save.every=0.000001")
    vitrail.train(arrays, steps=3, settings=settings, out=path, quiet=True)
    names = ("config.yaml", "metrics.jsonl", "timing.jsonl", "status.json", "split.json", "model/config.json")
    newest = sorted(checkpoint.list_checkpoints(path / "checkpoints")[-1].iterdir())
    run = read_run(path)

    def read(say: Say) -> Any:
        return run(say), describe(vitrail.weights.load(path / "model", log=say))

    return Kind("run", [*(path / name for name in names), *newest], read)


def flip(kind: Kind, file: Path, expected: Any, said: list[str], chance: random.Random) -> str:
    """What becomes of one flipped bit: "refused", "named", "harmless" or "silent"."""
    content, lines = file.read_bytes(), []
    place, bit = chance.randrange(len(content)), chance.randrange(8)
    file.write_bytes(content[:place] + bytes([content[place] ^ 1 << bit]) + content[place + 1 :])
    try:
        found = kind.read(lines.append)
    except VitrailError:
        return "refused"
    finally:
        file.write_bytes(content)
    if lines != said:
        return "named"
    return "harmless" if found == expected else f"silent (byte {place}, bit {bit})"


def count_outcomes(flips: int, place: Path, *, exports: bool) -> dict[str, Counter[str]]:
    """The outcomes of about ``flips`` random flips, the same number in every file."""
    chance, kinds = random.Random(0), list(write_kinds(place, exports=exports))
    each = -(-flips // sum(len(kind.files) for kind in kinds))
    outcomes = {}
    for kind in kinds:
        said: list[str] = []
        expected = kind.read(said.append)
        for file in kind.files:
            counts = Counter(flip(kind, file, expected, said, chance) for _ in range(each))
            outcomes[f"{kind.name}: {file.name}"] = counts
    return outcomes


@pytest.mark.parametrize("flips", few_or_nightly(130, 10_000))
def test_no_flipped_bit_is_silent(flips, tmp_path) -> None:
    outcomes = count_outcomes(flips, tmp_path, exports=flips > 1000)
    assert sum(counts.total() for counts in outcomes.values()) >= flips
    silent = {file: [word for word in counts if word.startswith("silent")] for file, counts in outcomes.items()}
    assert not {file: words for file, words in silent.items() if words}
