"""How ranks divide the images of a source, and agree on those that could not be read."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from vitrail.data.loader import Bad
from vitrail.data.sources.source import Source
from vitrail.runtime.distributed import Ranks


def deal_batches(count: int, batch: int, ranks: Ranks) -> np.ndarray:
    """Which of ``count`` rows this rank computes, in rising order: whole batches, those that one process has, in turn."""
    rows = np.arange(count)
    return rows[rows // batch % ranks.world == ranks.rank]


def tell_bad(noted: Mapping[str, str], source: Source, bad: Bad, ranks: Ranks) -> None:
    """Calls ``bad`` on every rank with the images that any of them ``noted`` (key to reason), in the order of the source.

    What ``bad`` raises on one rank is raised on all.
    """
    reasons = {key: reason for each in ranks.gather(dict(noted)) for key, reason in each.items()}
    with ranks.share_errors():
        for key in filter(reasons.__contains__, source.keys if reasons else ()):
            bad(key, reasons[key])
