"""The similarity of one patch to all: cosines in plain loops, in every architecture, and patches that do not exist."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from tests.looked_at import picture, shaken
from tests.models.conftest import shaken as shaken_backbone
from tests.models.tiny import TINY
from vitrail.analysis.explanation import ExplainOptions
from vitrail.analysis.similarity import patch_similarity
from vitrail.errors import ConfigError
from vitrail.models import create_backbone
from vitrail.verbs.explain import explain


@pytest.mark.parametrize("name", TINY)
def test_it_is_the_cosine_of_the_last_normed_features(name):
    """Of two oblong images of one channel."""
    config = replace(TINY[name], in_channels=1)
    model = shaken_backbone(create_backbone(config)).eval()
    images = torch.randn(2, 1, *config.image_size)
    with torch.no_grad():
        last = model.dense_maps(images)[-1]
    rows, columns = last.shape[2:]
    found = patch_similarity(model, images, (rows - 1, 0))
    for image in range(2):
        one = last[image, :, rows - 1, 0]
        expected = [
            [float(one @ other / (one.norm() * other.norm())) for other in row.mT] for row in last[image].movedim(1, 0)
        ]
        np.testing.assert_allclose(found[image], expected, atol=1e-5)
    assert torch.equal(patch_similarity(model, images), patch_similarity(model, images, (rows // 2, columns // 2)))
    assert found[:, rows - 1, 0] == pytest.approx(1.0, abs=1e-5)


def test_the_patch_is_chosen_by_row_and_column(tmp_path):
    picture(40, 90).save(tmp_path / "wide.png")
    model = shaken()
    how = {"out": tmp_path / "out", "method": "similarity", "quiet": True, "log": lambda line: None}
    (found,) = explain(model, [tmp_path / "wide.png"], patch="3,0", **how)
    images = model.preprocess((tmp_path / "wide.png").read_bytes())
    np.testing.assert_allclose(found.heat, patch_similarity(model, images, (3, 0))[0], rtol=1e-5)
    assert found.heat[3, 0] == pytest.approx(1.0) and (tmp_path / "out" / "wide.similarity.png").exists()
    with pytest.raises(ConfigError, match="there is no patch 4,0 in a map of 4 x 4"):
        list(explain(model, [tmp_path / "wide.png"], patch=(4, 0), **how))
    with pytest.raises(ConfigError, match="the patch is '3'"):
        explain(model, [tmp_path / "wide.png"], patch="3", **how)
    stored = json.loads((tmp_path / "out" / "similarity.json").read_text())
    assert stored["patch"] == [3, 0]
    with pytest.raises(ConfigError, match="explains no class"):
        explain(model, [tmp_path / "wide.png"], target=model.classes[0], **how)
    with pytest.raises(ConfigError, match="compares no patch"):
        ExplainOptions(method="occlusion", patch=(0, 0))
