"""The report and the model card of a finished detector or segmenter, with pictures of its answers."""

from __future__ import annotations

import math
from collections.abc import Iterable
from pathlib import Path

from vitrail.data.sources.contents import choose_evenly
from vitrail.markup import Markup, join
from vitrail.reports import curves, summary
from vitrail.reports.components import charts, notes, run, warn_of_few
from vitrail.reports.corruptions import list_corruptions
from vitrail.reports.dense import detection, segmentation
from vitrail.reports.dense.samples import draw_samples, show_samples
from vitrail.reports.facts import JudgedRun, RunFacts
from vitrail.reports.page import frame, write_page
from vitrail.tasks import Detector
from vitrail.tasks.detection.metric import BoxMetric
from vitrail.tasks.segmentation.metric import MapMetric
from vitrail.text import listing, shorten

WORST, EXAMPLES = 6, 4  # pictures that are shown


write_card = summary.write_card


def write_report(folder: Path, judged: JudgedRun) -> Path:
    """Writes ``report.html`` into ``folder`` and returns its path."""
    facts, judgement = RunFacts(**judged.facts), judged.judgement
    of_training = summary.drawings(facts)
    metric, model = judgement.metric, judged.model
    threshold = 0.0  # the least score of a box that is shown
    if isinstance(metric, BoxMetric):
        assert isinstance(model, Detector), model.name
        threshold = model.threshold if math.isnan(metric.threshold) else metric.threshold
        plots, about = detection.drawings(metric), detection.describe_worst(threshold)
        findings = detection.sections(metric, judgement.figures, plots, model.threshold)
    else:
        assert isinstance(metric, MapMetric), type(metric).__name__
        plots, about = segmentation.drawings(metric), segmentation.WORST
        findings = segmentation.sections(metric, plots)
    names = listing([shorten(name, 40) for name in judgement.classes])
    spread = choose_evenly(len(metric.keys), EXAMPLES)
    parts = {
        "Curves": charts(curves.troubles(facts.records), list(of_training.values())),
        **findings,
        "Classes": summary.list_classes(judged),
        "Worst pictures": pictures("Worst pictures", about, judged, metric.worst(WORST), threshold),
        "Examples": pictures("Examples", "Pictures spread evenly over the split.", judged, spread, threshold),
        "Corruptions": list_corruptions(judgement.figures),
        "Run details": run(facts, {"Task": model.name, "Classes": f"{len(judgement.classes):,}: {names}"}),
    }
    opening = join(summary.headline(judged), notes([*warn_of_few(len(metric.keys)), *facts.notes]))
    page = frame("vitrail report", facts.title, facts.date, opening, parts)
    return write_page(folder, page, {**of_training, **plots})


def pictures(title: str, about: str, judged: JudgedRun, rows: Iterable[int], threshold: float) -> Markup | None:
    """Returns the section of the pictures with these numbers in the judgement."""
    keys = [judged.judgement.keys[row] for row in rows]
    return show_samples(title, about, draw_samples(judged.model, judged.source, keys, threshold), judged.model.classes)
