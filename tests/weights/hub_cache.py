"""A cache of the Hugging Face hub with small networks under the names of published ones."""

from __future__ import annotations

from pathlib import Path

import pytest
from huggingface_hub import constants

from tests.weights.hub_mirror import COMMIT
from tests.weights.untrusted import timm_folder


def fill_cache(cache: Path, *repositories: str) -> None:
    """Writes a small ViT in timm's layout into the cache, as each of ``repositories``."""
    for repository in repositories:
        folder = cache / f"models--{repository.replace('/', '--')}"
        snapshot = folder / "snapshots" / COMMIT
        snapshot.mkdir(parents=True, exist_ok=True)
        timm_folder()(snapshot)
        (folder / "refs").mkdir(exist_ok=True)
        (folder / "refs" / "main").write_text(COMMIT)


def use_cache(cache: Path, patch: pytest.MonkeyPatch) -> None:
    """Makes the hub's client offline, with this cache."""
    patch.setattr(constants, "HF_HUB_OFFLINE", True)
    patch.setattr(constants, "HF_HUB_CACHE", str(cache))
