"""What a model gives for the images of a source: in the precision that is asked for, and evaluated only against labels."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.models.tiny import TINY
from vitrail.data.sources.contents import Arrays, Strings
from vitrail.data.sources.source import Source
from vitrail.errors import DataError
from vitrail.evaluation.evaluate import evaluate_model
from vitrail.inference.options import InferenceOptions
from vitrail.inference.outputs import run_model
from vitrail.tasks.classification.classifier import Classifier, create_classifier


@pytest.fixture(scope="module")
def model() -> Classifier:
    return create_classifier(TINY["vit"], classes=tuple("abcdefg")).eval()


def pictures(targets: tuple[int, ...] = ()) -> Source:
    images = np.random.default_rng(0).integers(0, 256, (6, 32, 32, 3), np.uint8)
    return Source(contents=Arrays(images, Strings(map(str, range(6)))), targets=np.array(targets, int))


@pytest.mark.parametrize(("precision", "dtype"), [("fp32", torch.float32), ("bf16", torch.bfloat16)])
def test_the_verb_runs_in_the_precision_and_its_outputs_are_fp32_in_order(model, precision, dtype):
    seen = []

    def verb(images: torch.Tensor) -> torch.Tensor:
        sums = images.flatten(1) @ torch.ones(images[0].numel(), 1)
        seen.append(sums.dtype)
        return sums

    options = InferenceOptions(batch=4, precision=precision)
    given = [(batch.keys, sums) for batch, sums in run_model(model, pictures(), options, verb=verb)]
    assert set(seen) == {dtype}
    assert [keys for keys, _ in given] == [["0", "1", "2", "3"], ["4", "5"]]
    assert all(sums.dtype == torch.float32 for _, sums in given)


def test_a_source_without_labels_is_not_evaluated(model):
    with pytest.raises(DataError, match="the split 'val' has no labels"):
        evaluate_model(model, pictures(), InferenceOptions(), split="val")
    result = evaluate_model(model, pictures((0, 1, 2, 3, 4, 5)), InferenceOptions(), split="val")
    assert result.figures["images"] == 6
