"""Two checkpoints compared: equal ones do not differ, and each tensor and fact that does is named."""

from __future__ import annotations

import numpy as np
import torch

from tests.weights.kinds import a_model
from vitrail.verbs.convert import convert
from vitrail.verbs.convert.compare import compare
from vitrail.weights.native import save_model


def test_two_copies_of_a_model_do_not_differ(tmp_path, saved):
    source = saved()
    found = compare(source, convert(source, tmp_path / "a.npz", "google").path)
    assert found.is_none
    assert (found.equal, found.as_models) == (32, True)


def test_a_difference_names_each_tensor_and_fact(tmp_path, saved):
    other = a_model(classes=("ant", "bee", "dog", "emu"), gelu="exact", norm_eps=1e-5, registers=1)
    with torch.no_grad():
        other.backbone.get_parameter("norm.bias")[3] += 0.25
        other.backbone.get_parameter("cls_token")[0, 0, 0] = float("nan")
        other.backbone.get_parameter("patch_embed.proj.bias").copy_(
            a_model().backbone.get_parameter("patch_embed.proj.bias")
        )
    found = compare(saved(), save_model(tmp_path / "other", other))
    assert found.differing[0].name == "cls_token", "what is no number comes first"
    named = {each.name: each for each in found.differing}
    assert named["norm.bias"].absolute > 0
    assert found.shapes.keys() == {"head.weight", "head.bias"}
    assert found.shapes["head.bias"] == ("3 float32", "4 float32")
    assert (found.only_first, found.only_second) == ((), ("reg_token",))
    assert found.facts["config.gelu"] == ("tanh", "exact")
    assert found.facts["classes"] == (["ant", "bee", "cat"], ["ant", "bee", "dog", "emu"])
    assert found.equal == 1
    assert not found.is_none


def test_what_is_no_model_is_compared_by_the_names_in_the_files(tmp_path):
    np.savez(tmp_path / "a.npz", one=np.zeros(3, np.float32), two=np.ones((2, 2)), three=np.ones(2))
    np.savez(tmp_path / "b.npz", one=-np.zeros(3, np.float32), two=np.full((2, 2), 3.0), three=np.ones(3))
    said: list[str] = []
    found = compare(tmp_path / "a.npz", tmp_path / "b.npz", log=said.append)
    assert not found.as_models
    assert "not as models" in said[-1]
    assert [(each.name, each.absolute, each.relative) for each in found.differing] == [("two", 2, 2), ("one", 0, 0)]
    assert found.shapes == {"three": ("2 float64", "3 float64")}
