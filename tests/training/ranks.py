"""Processes that are started once and then run one function after the other as the ranks of a training."""

from __future__ import annotations

import multiprocessing
import os
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

MOST = 3  # with two ranks alone, a wrong order of sums would not be seen
PATIENCE = 100  # seconds for one function


class Pool:
    """Runs functions of a module on the first two ranks, the first three, and so on."""

    def __init__(self, pipes: list[Connection]) -> None:
        self.pipes = pipes

    def __call__(self, world: int, function: Callable[..., Any], *args: Any) -> list[Any]:
        """What ``function(ranks, *args)`` returns on each of ``world`` ranks; an error of one of them is raised."""
        for pipe in self.pipes[:world]:
            pipe.send((world, function, args))
        answers = []
        for rank, pipe in enumerate(self.pipes[:world]):
            assert pipe.poll(PATIENCE), f"rank {rank} does not answer"
            answers.append(pipe.recv())
        faults = [f"rank {rank}: {fault}" for rank, (fault, _) in enumerate(answers) if fault]
        assert not faults, "\n".join(faults)
        return [result for _, result in answers]


@contextmanager
def start_pool(folder: Path, most: int = MOST) -> Iterator[Pool]:
    """``most`` processes, which use ``folder`` to find one another."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["vitrail.training.train", "vitrail.training.parallel"])
    pairs = [context.Pipe() for _ in range(most)]
    workers = [
        context.Process(target=_serve, args=(rank, most, str(folder / "store"), theirs), daemon=True)
        for rank, (_, theirs) in enumerate(pairs)
    ]
    for worker in workers:
        worker.start()
    try:
        yield Pool([ours for ours, _ in pairs])
    finally:
        for ours, _ in pairs:
            ours.send(None)
        for worker in workers:
            worker.join(10)
            worker.kill()


def _serve(rank: int, most: int, store: str, pipe: Connection) -> None:
    import torch
    import torch.distributed as dist

    from vitrail.runtime.distributed import Ranks

    torch.set_num_threads(1)
    limit = timedelta(seconds=PATIENCE)
    dist.init_process_group("gloo", store=dist.FileStore(store, most), rank=rank, world_size=most, timeout=limit)
    joined = {}
    for world in range(2, most + 1):
        group, words, saving = (dist.new_group(list(range(world)), backend="gloo", timeout=limit) for _ in range(3))
        joined[world] = Ranks(rank, world, world, group, words, saving=saving)
    while (job := pipe.recv()) is not None:
        world, function, args = job
        try:
            pipe.send(("", function(joined[world], *args)))
        except BaseException:
            pipe.send((traceback.format_exc(), None))
    os._exit(0)
