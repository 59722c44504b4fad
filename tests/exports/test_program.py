"""Programs of `torch.export`: what they compute once loaded is what the model computes, at every size and batch."""

from __future__ import annotations

import pytest
import torch

from tests.exports.exported import assert_same_answers, classifier_of
from vitrail.exports.program import to_program

# one of each: the ONNX files of all others begin as the same programs
KINDS = ("vit", "vit, stem", "axial", "swin", "cait", "beit", "bit", "pvt", "pvt v2", "deit", "encoder")


@pytest.mark.slow
@pytest.mark.parametrize("name", KINDS)
def test_so_it_does_for_every_architecture(name, tmp_path):
    model = classifier_of(name)
    is_dynamic = to_program(model, tmp_path / "model.pt2")
    program = torch.export.load(tmp_path / "model.pt2").module()
    assert_same_answers(model, program, is_dynamic=is_dynamic)


@pytest.mark.slow
def test_a_loaded_program_gives_what_the_model_gives_carries_the_metadata_and_refuses_what_the_model_refuses(tmp_path):
    model, found = classifier_of("vit, one block"), {"classes": ""}
    assert to_program(model, tmp_path / "model.pt2", metadata={"classes": '["a", "b"]'})
    program = torch.export.load(tmp_path / "model.pt2", extra_files=found).module()
    assert_same_answers(model, program, is_dynamic=True)
    assert found == {"classes": '["a", "b"]'}
    with pytest.raises(AssertionError, match="Guard failed"):
        program(torch.zeros(1, 3, 33, 40))
