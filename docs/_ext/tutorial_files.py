"""The files in the folder that a tutorial runs in.

    photos/train/{ants,bees}/*.jpg       60 photographs of each class
    photos/val/{ants,bees}/*.jpg         50 of each
    new/{ant,bee}-{1,2,3,4}.jpg          photographs that are in neither
    .hub/                                a cache of the Hugging Face hub with the public weights `vit-ti16`

They come from the folder that ``VITRAIL_TEST_DATA`` names, and nothing of it becomes part of the repository. A kernel of the
documentation's build starts in an empty folder and runs this file as its ``PYTHONSTARTUP`` (docs/conf.py); ``python
docs/_ext/tutorial_files.py`` in an empty folder does the same for whoever writes a tutorial.
"""

import json
import os
import shutil
from pathlib import Path

CHECKPOINT = "vit_tiny_patch16_224.safetensors"
REPOSITORY = "models--timm--vit_tiny_patch16_224.augreg_in21k_ft_in1k"
DESCRIPTION = {
    "architecture": "vit_tiny_patch16_224",
    "num_classes": 1000,
    "pretrained_cfg": {"tag": "augreg_in21k_ft_in1k"},
}
TRAIN, VAL, NEW = 60, 50, 4  # photographs of each class


def put_files(folder: Path, data: Path) -> None:
    """Copies a tutorial's files from the folder of real data into ``folder``.

    ``data`` holds ``hymenoptera/{train,val}/{ants,bees}/*.jpg`` and the checkpoint.
    """
    (folder / "new").mkdir()
    for name in ("ants", "bees"):
        photographs = {split: sorted((data / "hymenoptera" / split / name).glob("*.jpg")) for split in ("train", "val")}
        for split, count in {"train": TRAIN, "val": VAL}.items():
            (folder / "photos" / split / name).mkdir(parents=True)
            for image in photographs[split][:count]:
                shutil.copyfile(image, folder / "photos" / split / name / image.name)
        for number, image in enumerate(photographs["val"][VAL : VAL + NEW], 1):
            shutil.copyfile(image, folder / "new" / f"{name.removesuffix('s')}-{number}.jpg")
    snapshot = folder / ".hub" / REPOSITORY / "snapshots" / ("0" * 40)
    snapshot.mkdir(parents=True)
    shutil.copyfile(data / CHECKPOINT, snapshot / "model.safetensors")
    (snapshot / "config.json").write_text(json.dumps(DESCRIPTION))
    refs = folder / ".hub" / REPOSITORY / "refs"
    refs.mkdir()
    (refs / "main").write_text(snapshot.name)


if __name__ == "__main__":
    put_files(Path.cwd(), Path(os.environ["VITRAIL_TEST_DATA"]))
    os.environ |= {"HF_HUB_CACHE": str(Path.cwd() / ".hub"), "HF_HUB_OFFLINE": "1"}
    # a tutorial's namespace is empty when it starts; this runs in it
    del json, os, shutil, Path, CHECKPOINT, REPOSITORY, DESCRIPTION, TRAIN, VAL, NEW, put_files
