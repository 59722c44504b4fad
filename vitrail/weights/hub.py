"""Weights from the Hugging Face hub: downloaded once, verified by their SHA-256, and read from the cache afterwards."""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path
from typing import Any

from vitrail.errors import CheckpointError, ConfigError
from vitrail.hub import REMOTE, REPOSITORY, REVISION, SHA256, check_hashes, explain_failures, make_silent_bar
from vitrail.runtime.progress import LogFunction, to_stderr
from vitrail.text import large, printable
from vitrail.weights.folders import OPEN_CLIP
from vitrail.weights.public import PublicWeights, find_repository, list_public
from vitrail.weights.tensors import read_json

NAME = re.compile(REMOTE + REPOSITORY + REVISION, re.ASCII)
DESCRIPTIONS, SAFETENSORS, PICKLED = "*.json", "model*.safetensors", "pytorch_model*.bin"
ORDER = (SAFETENSORS, OPEN_CLIP, PICKLED)  # the first of which a repository has files
ELSEWHERE = "*/*"  # subfolders: training checkpoints, and conversions to other tools


def fetch(model: str, *, update: bool = False, log: LogFunction = to_stderr) -> Path:
    """Returns the cached folder of a model with its descriptions and weights, but no code; downloads it if it is not there.

    A model in the cache is taken as it is, without a request: the same name gives the same weights, also without a network.
    Of a repository with the same weights in several layouts those of timm or transformers in safetensors are taken, otherwise
    those of open_clip, and pickled files only where there is nothing else.

    Args:
        model: ``hf:owner/name`` or ``hf:owner/name@revision``.
        update: ask the hub for a newer revision even if there is one in the cache.

    Raises:
        ConfigError: the name is invalid, or the model or revision does not exist.
        CheckpointError: the model is not in the cache and the hub cannot be reached, or a file is damaged.
    """
    matched = NAME.fullmatch(model)
    if matched is None or ".." in model:
        remedy = "give hf:owner/name, or hf:owner/name@revision"
        raise ConfigError(f"{printable(model, 200)!r} is not the name of a model on the hub", remedy)
    from huggingface_hub import snapshot_download  # takes a while
    from huggingface_hub.constants import HF_HUB_CACHE
    from huggingface_hub.errors import DryRunError

    public = find_repository(matched["name"])
    terms = f", licence {public.terms}" if public else ""

    def download() -> Path:
        for weights in ORDER:
            files_of: dict[str, Any] = {"revision": matched["revision"], **files_with(weights)}
            with suppress(DryRunError):  # without a network; the download itself says why it fails
                files = snapshot_download(matched["name"], dry_run=True, tqdm_class=make_silent_bar(), **files_of)
                if size := sum(file.file_size for file in files if file.will_download):
                    log(f"download {model}, {large(size, 'B')}{terms}, once, into {HF_HUB_CACHE}")
            folder = Path(snapshot_download(matched["name"], **files_of))
            if any(folder.glob(weights)):
                break
        return folder

    get = f"`vitrail weights get {model} --out FILE.safetensors`"
    instead = f"run {get} on a machine with a network, and give that file"
    with explain_failures(model, CheckpointError, instead, access=_explain_gate(public)):
        cached = None if update else find_cached(matched["name"], matched["revision"])
        folder = cached or download()
    check_hashes((folder / name for name in list_hashes(folder)), CheckpointError)
    return folder


def find_cached(name: str, revision: str | None = None) -> Path | None:
    """Returns the folder of the repository ``name`` in the cache; None if it is not there with all of its weights."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    for weights in ORDER:
        with suppress(LocalEntryNotFoundError):
            folder = Path(snapshot_download(name, revision=revision, local_files_only=True, **files_with(weights)))
            indices = [read_json(index, log=lambda line: None) for index in folder.glob("*.index.json")]
            shards = {file for index in indices for file in index.get("weight_map", {}).values()}
            if any(folder.glob(weights)) and all((folder / file).exists() for file in shards):
                return folder
    return None


def files_with(weights: str) -> dict[str, Any]:
    """Returns the arguments of `snapshot_download` for descriptions, and weights of the pattern ``weights``, without code."""
    return {"allow_patterns": [DESCRIPTIONS, weights], "ignore_patterns": [ELSEWHERE]}


def list_hashes(folder: Path) -> dict[str, str]:
    """The SHA-256 that the hub states for each large file in a folder of its cache, where they lie under this name."""
    files = {path.name: path.resolve().name for path in sorted(folder.iterdir())}
    return {name: blob for name, blob in files.items() if SHA256.fullmatch(blob)}


def _explain_gate(public: PublicWeights | None) -> str:
    if public is None or not public.is_gated:
        return ""
    remedy = "accept its licence on its page of the hub, wait until the owner admits you, and run: hf auth login"
    others = [each.source for each in list_public(public.model).values() if not each.is_gated]
    return remedy + (f"; or take a copy that is not gated by its owner: {', '.join(others)}" if others else "")
