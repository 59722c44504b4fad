"""The cache of the Hugging Face hub that a tutorial runs with: what it downloads is there, as if it had been downloaded before.

    .hub/datasets--delima87--beesvsants/...    photographs of ants and bees
    .hub/models--timm--.../...                 the public weights `vit-ti16`

They come from the folder that ``VITRAIL_TEST_DATA`` names, and nothing of it becomes part of the repository. A kernel of the
documentation's build starts in an empty folder and runs this file as its ``PYTHONSTARTUP`` (docs/conf.py); ``python
docs/_ext/tutorial_files.py`` in an empty folder does the same for whoever writes a tutorial.
"""

import json
import os
import shutil
from pathlib import Path

CHECKPOINT = "vit_tiny_patch16_224.safetensors"
MODEL, DATA = "models--timm--vit_tiny_patch16_224.augreg_in21k_ft_in1k", "datasets--delima87--beesvsants"
DESCRIPTION = {
    "architecture": "vit_tiny_patch16_224",
    "num_classes": 1000,
    "pretrained_cfg": {"tag": "augreg_in21k_ft_in1k"},
}


def fill_cache(cache: Path, data: Path) -> None:
    """Puts what tutorials download into ``cache``, from ``data``, which holds ``hymenoptera/{train,val}`` and the checkpoint."""
    shutil.copytree(data / "hymenoptera", make_snapshot(cache / DATA) / "imagefolder")
    snapshot = make_snapshot(cache / MODEL)
    shutil.copyfile(data / CHECKPOINT, snapshot / "model.safetensors")
    (snapshot / "config.json").write_text(json.dumps(DESCRIPTION))


def make_snapshot(repository: Path) -> Path:
    """Makes the folder of a repository's only commit, which is that of its branch ``main``."""
    snapshot = repository / "snapshots" / ("0" * 40)
    snapshot.mkdir(parents=True)
    (repository / "refs").mkdir()
    (repository / "refs/main").write_text(snapshot.name)
    return snapshot


if __name__ == "__main__":
    fill_cache(Path(".hub").absolute(), Path(os.environ["VITRAIL_TEST_DATA"]))
    os.environ |= {"HF_HUB_CACHE": str(Path.cwd() / ".hub"), "HF_HUB_OFFLINE": "1"}
    # a tutorial's namespace is empty when it starts; this runs in it
    del json, os, shutil, Path, CHECKPOINT, MODEL, DATA, DESCRIPTION, fill_cache, make_snapshot
