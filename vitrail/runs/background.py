"""Checkpoints in the background: what a step waits for is a copy of the tensors."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from threading import Thread
from typing import Any

import torch
from torch import Tensor

from vitrail.errors import DiskError
from vitrail.files import disk_errors
from vitrail.runs import checkpoint
from vitrail.runtime import fault_injection
from vitrail.runtime.distributed import Ranks


class BackgroundSaver:
    """Writes checkpoints while the training goes on, one at a time.

    A single process writes format 1, several ranks write format 2, each its part. They agree in a group of their own, so their
    exchanges do not mix with those of the training; an error of one is that of all, and waits until `wait` raises it.

    Args:
        ranks: the processes that train together; every method but `failed` is called by all of them at the same step.
    """

    def __init__(self, ranks: Ranks) -> None:
        self.ranks = ranks
        self.apart = replace(ranks, control_group=ranks.checkpoint_group)
        self._stager: Any = None
        self._thread: Thread | None = None
        self._error: BaseException | None = None

    def save(
        self,
        folder: Path,
        step: int,
        groups: Mapping[str, Mapping[str, Tensor]],
        state: dict[str, Any],
        *,
        keep: int,
        evaluated: bool = False,
    ) -> None:
        """Copies the tensors of ``groups``, and begins to write them as the checkpoint of ``step``; see `runs.checkpoint.save`.

        It waits for the checkpoint before, and raises what `wait` does.
        """
        self.wait()
        if self.ranks.is_single:
            copies = {
                group: {name: tensor.to("cpu", copy=True) for name, tensor in named.items()}
                for group, named in groups.items()
            }
            self._start(lambda: checkpoint.save(folder, step, copies, state, keep=keep, evaluated=evaluated))
            return
        final, aside = self.ranks.broadcast(checkpoint.name_folders(folder, step, evaluated=evaluated))
        if not self.ranks.run_on_rank0(lambda: checkpoint.is_whole(final)):
            parts = self._copy(
                {f"{group}/{name}": tensor for group in groups for name, tensor in groups[group].items()}
            )
            self._start(lambda: self._write_parts(aside, final, parts, state, keep))

    def _copy(self, tensors: dict[str, Tensor]) -> Any:
        """Copies on the CPU, in memory that is kept for the next time, of tensors that stay spread as they are."""
        from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions  # it takes a moment to load

        if self._stager is None:
            cuda = torch.cuda.is_available()
            self._stager = DefaultStager(
                StagingOptions(cuda, use_shared_memory=False, use_async_staging=False, use_non_blocking_copy=cuda)
            )
        return self._stager.stage(tensors)

    def _start(self, write: Callable[[], object]) -> None:
        def act() -> None:
            try:
                write()
            except BaseException as error:
                self._error = error

        self._thread = Thread(target=act, name="checkpoint", daemon=True)
        self._thread.start()

    @property
    def failed(self) -> bool:
        """Whether the checkpoint could not be written, as far as this rank knows."""
        return self._error is not None

    def wait(self) -> None:
        """Waits until the checkpoint is complete. Raises `DiskError` on every rank if one of them could not write it."""
        self.close()
        error, self._error = self._error, None
        if error is not None:
            raise error

    def close(self) -> None:
        """Waits for the thread and leaves its error."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def _write_parts(self, aside: Path, final: Path, tensors: Any, state: dict[str, Any], keep: int) -> None:
        from vitrail.runs.tensor_shards import write_shards

        ranks = self.apart

        def begin() -> None:
            with disk_errors(final):
                checkpoint.begin(aside)

        def digest_own_file() -> dict[str, checkpoint.Facts]:
            with disk_errors(final):
                fault_injection.hit("checkpoint.after_first_tensors")
                own = sorted((aside / checkpoint.SHARDS).glob(f"shard-{ranks.rank + 1:05d}-*"))
                return {f"{checkpoint.SHARDS}/{path.name}": checkpoint.digest_file(path) for path in own}

        def publish() -> None:
            with disk_errors(final):
                checkpoint.publish(aside, final, state, files, checkpoint.SHARDED)

        try:
            ranks.run_on_rank0(begin)
            write_shards(aside / checkpoint.SHARDS, tensors, ranks)
            stated = ranks.gather(ranks.run_on_all(digest_own_file))
            files = {name: facts for part in stated for name, facts in part.items()}
            ranks.run_on_rank0(publish)
        except DiskError:
            if ranks.first:
                shutil.rmtree(aside, ignore_errors=True)
            raise
        if ranks.first:
            checkpoint.retire(final, keep)
