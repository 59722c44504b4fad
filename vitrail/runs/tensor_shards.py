"""Named tensors of several ranks in one folder: a safetensors file for each rank, written and read by torch's distributed
checkpoint.

A file states where its slices belong in the whole tensors, so any number of processes reads what any other number wrote.
Nothing is pickled.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from torch import Tensor
from torch.distributed.checkpoint import CheckpointException

from vitrail.errors import DiskError
from vitrail.files import disk_errors
from vitrail.runtime.distributed import SINGLE, Ranks, lost_ranks


def write_shards(folder: Path, tensors: Mapping[str, Tensor], ranks: Ranks) -> None:
    """Writes this rank's part of ``tensors`` and syncs it; every rank calls it. What several ranks hold is written by one.

    Raises `DiskError` on every rank if one of them cannot write, and `LostRankError`.
    """
    writer = dcp.HuggingFaceStorageWriter(str(folder), save_distributed=True)
    try:
        with lost_ranks():
            dcp.save(dict(tensors), storage_writer=writer, process_group=ranks.control_group)
    except CheckpointException as error:
        rank, (cause, _) = min(error.failures.items())
        try:
            with disk_errors(folder.parent):
                raise cause
        except DiskError as found:
            found.what = f"rank {rank}: {found.what}"
            raise ranks.collective_error(found) from None


def read_shards(folder: Path, tensors: Mapping[str, Tensor], ranks: Ranks) -> None:
    """Fills ``tensors``, which may be spread in any way, with those of the same names; every rank calls it."""
    with lost_ranks(), warnings.catch_warnings():
        # that a single process reads by itself
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")
        reader = dcp.HuggingFaceStorageReader(str(folder))
        dcp.load(dict(tensors), storage_reader=reader, process_group=ranks.control_group, no_dist=ranks.is_single)


def read_whole(folder: Path) -> dict[str, Tensor]:
    """All tensors by name, whole ones, in a single process."""
    tensors = {name: torch.empty(size, dtype=dtype) for name, (size, dtype) in list_tensors(folder).items()}
    read_shards(folder, tensors, SINGLE)
    return tensors


def list_tensors(folder: Path) -> dict[str, tuple[torch.Size, torch.dtype]]:
    """Shape and type of every tensor, by name."""
    found: Mapping[str, Any] = dcp.HuggingFaceStorageReader(str(folder)).read_metadata().state_dict_metadata
    return {name: (found[name].size, found[name].properties.dtype) for name in sorted(found)}
