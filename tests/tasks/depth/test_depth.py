"""A dense task of floats is trained, evaluated, used, served and exported by the code as it is."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image

import vitrail
from tests.serving.conftest import start as start
from tests.tasks.depth.task import DepthEstimator, DepthMaps
from vitrail.data.sources.contents import Arrays, Strings
from vitrail.data.sources.source import Source, Splits
from vitrail.serving.loaded_model import LoadedModel
from vitrail.tasks import TASKS, register_task

SETTINGS = [
    "augment.jitter=[0, 0, 0]",
    "model.changes={width: 32, depth: 1, heads: 2, mlp_width: 64, patch_size: [4, 4]}",
]


def draw_ramps(count: int, seed: int) -> Source:
    """Pictures that get brighter from left to right, from near to far; the depth of the first two columns is not known."""
    ends = np.sort(np.random.default_rng(seed).uniform(0, 255, (count, 2, 1)), axis=1)
    levels = (ends[:, 0] + (ends[:, 1] - ends[:, 0]) * np.linspace(0, 1, 48)).astype(np.uint8)  # (n, W)
    images = np.broadcast_to(levels[:, None, :, None], (count, 32, 48, 3)).copy()
    depths = (1 + images[..., :1] / 85).astype(np.float32)  # from 1 to 4
    depths[:, :, :2] = np.nan
    keys = Strings(list(map(str, range(count))))
    return Source(contents=Arrays(images, keys), targets=DepthMaps(Arrays(depths, keys)), classes=("depth",))


DATA = Splits(train=draw_ramps(64, 0), val=draw_ramps(16, 1), test=None, layout="ramps", classes=("depth",))


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    register_task(DepthEstimator)
    out = tmp_path_factory.mktemp("runs") / "depth"
    yield vitrail.train(DATA, out=out, recipe="segment", steps=80, batch=8, lr=5e-3, settings=SETTINGS, quiet=True)
    del TASKS["depth"]


def test_depth_is_trained_evaluated_predicted_and_served(trained, tmp_path, start):
    images, depths = DATA.val.images, DATA.val.targets.contents.images
    limit = 0.5 * np.nanstd(depths)  # half the error of a model that answers with the mean
    assert trained.figures["rmse"] < limit and trained.figures["abs_rel"] < 0.25
    assert vitrail.evaluate(trained.folder, DATA, quiet=True).figures["rmse"] == trained.figures["rmse"]

    Image.fromarray(images[0].repeat(2, 0).repeat(2, 1)).save(path := tmp_path / "ramp.png")
    (answer,) = vitrail.predict(trained.folder, [path], quiet=True)
    error = answer.map - depths[0, ..., 0].repeat(2, 0).repeat(2, 1)
    assert error.shape == (64, 96) and np.sqrt(np.nanmean(error**2)) < limit
    with start(lambda: LoadedModel(vitrail.load(trained.folder), "depth")) as client:
        reply = client.post("/v1/predict", files={"image": ("ramp.png", path.read_bytes())})
    assert reply.json()["predictions"][0]["farthest"] == pytest.approx(answer.row()["farthest"])


@pytest.mark.slow
def test_depth_is_exported(trained, tmp_path):
    exported = vitrail.export(trained.folder, tmp_path / "depth.onnx", check=DATA, images=16, quiet=True).figures
    assert (exported["metric"], exported["agreement"]) == ("rmse", 1)
    noise = torch.randn(2, 3, 32, 48, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(vitrail.load(tmp_path / "depth.onnx")(noise), vitrail.load(trained.folder)(noise))
