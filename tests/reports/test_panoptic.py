"""The report of a panoptic segmenter: its figures, its classes and its pictures are those of the result."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image

from tests.reports.reading import PAYLOAD, Page
from tests.reports.test_dense import shown
from tests.tasks.dense_models import VIT
from tests.tasks.spot import SpotFinder
from tests.tasks.test_panoptic_metric import THINGS, annotate, answer, rows_of
from vitrail.data.sources.contents import Arrays, Strings
from vitrail.data.sources.source import Source
from vitrail.evaluation.evaluate import evaluate_model
from vitrail.inference.options import InferenceOptions
from vitrail.models import configure
from vitrail.reports.evaluated_run import write_documents
from vitrail.reports.facts import EvaluatedRun
from vitrail.reports.samples import SIDE, draw_samples
from vitrail.tasks import create_task
from vitrail.tasks.dense.drawing import scale_to_show
from vitrail.tasks.instances.loss import OutlineTargets
from vitrail.tasks.panoptic.answer import Panoptic
from vitrail.tasks.panoptic.metric import PanopticMetric

SIZE = (32, 48)
CLASSES = (PAYLOAD, *"bcdef")
# a right thing, one taken for b, void, a crowd, and stuff of d that is missed
TRUE = np.tile(rows_of((2, 12), (3, 12), (0, 6), (1, 6), (4, 12)), (32, 1))
FOUND = np.tile(rows_of((1, 12), (2, 12), (0, 24)), (32, 1))


class Fixed(SpotFinder):
    """Answers with the same segments for every picture."""

    name = "panoptic"
    targets = OutlineTargets()

    def decode(self, outputs, frames=None, **options):
        found = answer(FOUND, [0, 1])
        segments = tuple(each._replace(label=CLASSES[k]) for k, each in enumerate(found.segments))
        return [Panoptic(found.ids, segments, CLASSES, THINGS)] * len(outputs)

    def metric(self, source=None):
        return PanopticMetric(CLASSES, THINGS, self.decode, source)


@pytest.fixture(scope="module")
def run():
    torch.manual_seed(0)
    model = create_task(Fixed, configure(VIT, image_size=SIZE), {"classes": CLASSES}).eval()
    labels, crowd = np.array([2, 0, 0, 3]), np.array([True, False, False, False])
    targets = annotate([(None, None, TRUE, labels, crowd)] * 2, SIZE)
    pictures = np.full((2, *SIZE, 3), 120, np.uint8)
    source = Source(contents=Arrays(pictures, Strings(["a.png", PAYLOAD])), targets=targets, classes=CLASSES)
    result = evaluate_model(model, source, InferenceOptions(quiet=True), split="val")
    result.metric.resamples = 20
    facts = {"title": PAYLOAD, "records": [{"step": 1, "loss": 2.0}, {"step": 1, "val_pq": 0.5}]}
    return EvaluatedRun(facts=facts, model=model, splits={"val": source}, source=source, result=result)


def test_the_page_has_the_table_of_classes_the_confusion_and_the_pictures(run, tmp_path):
    page = Page(write_documents(tmp_path, run).read_text("utf-8"))
    assert page.sections == ["curves", "confusion", "classes", "worst-pictures", "examples", "run-details"]
    assert "22.2 % panoptic quality" in page.said and "PQ of things 33.3 %" in page.said
    assert f"{PAYLOAD} 66.7 100.0 66.7 2 0 2 thing" in page.said and "d 0.0 0.0 0.0 0 0 2 stuff" in page.said
    assert f"{PAYLOAD} b 2 50.0 %" in page.said and "d no segment 2 100 %" in page.said
    assert len(page.all("img")) == 2 * 2 * 3 and len(page.scripts) == 1
    assert all(each["src"].startswith("data:") for each in page.all("img"))
    wrong = shown(page)[2].astype(int)
    redness = wrong[..., 0] - wrong[..., 2]
    times = redness.shape[1] // SIZE[1]
    middles = redness[:, [times * at for at in (6, 18, 27, 33, 42)]]
    assert (middles > 60).all(0).tolist() == [False, True, False, False, True] and middles[:, [0, 2, 3]].max() < 20


def test_a_sample_says_what_matches_and_names_crowds(run):
    (sample,) = draw_samples(run.model, run.source, ["a.png"], 0.0)
    assert sample.words == "1 right, 1 false, 2 missed" and sample.classes == {PAYLOAD, "b", "c", "d"}
    assert sample.panes[1].alt == f"a.png with the answer: 1 {PAYLOAD}, 1 b"
    assert sample.panes[0].caption.startswith(f"annotation: 2 {PAYLOAD}, 1 c")
    truth = Panoptic.of_objects(run.source.targets.of(0), CLASSES, THINGS)
    grey = scale_to_show(Image.new("RGB", SIZE[::-1], (120, 120, 120)), SIDE)
    expected = truth.draw_over(grey, ["c (ignored)", PAYLOAD, PAYLOAD])
    np.testing.assert_array_equal(np.asarray(sample.panes[0].image), np.asarray(expected))
