"""Programs of `torch.export`: what they compute once loaded is what the model computes, at every size and batch."""

from __future__ import annotations

import pytest
import torch

from tests.exports.exported import assert_same_answers, classifier_of
from vitrail.exports.program import to_program


# the ONNX files of all others begin as the same programs; windows of open sizes must come through a file here too
@pytest.mark.slow
@pytest.mark.parametrize("name", ["vit", "swin"])
def test_a_loaded_program_equals_the_model_and_carries_the_metadata(name, tmp_path):
    model, found = classifier_of(name), {"classes": ""}
    assert to_program(model, tmp_path / "model.pt2", metadata={"classes": '["a", "b"]'})
    program = torch.export.load(tmp_path / "model.pt2", extra_files=found).module()
    assert_same_answers(model, program, is_dynamic=True)
    assert found == {"classes": '["a", "b"]'}
    if name == "vit":  # as the model refuses it
        with pytest.raises(AssertionError, match="Guard failed"):
            program(torch.zeros(1, 3, 33, 40))
