"""A world of 64 ranks in one process, without memory for tensors: what FSDP2 holds and sends for a small ViT."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.testing._internal.distributed.fake_pg import FakeStore

import vitrail
from vitrail.config.schema import ComputeSettings
from vitrail.objectives.supervised import Supervised
from vitrail.runtime.distributed import Ranks
from vitrail.training import parallel

WORLD, LOCAL = 64, 8
CHANGES = {"image_size": 32, "patch_size": 8, "width": 192, "depth": 6, "heads": 3, "mlp_width": 768, "classes": 64}


def watch(name: str, choose: Callable[..., torch.Tensor], sent: Counter[str]) -> None:
    real = getattr(dist, name)

    def call(*args: Any, **more: Any) -> Any:
        tensor = choose(*args, **more)
        group = more.get("group")
        sent[f"{name} {WORLD if group is None else group.size()}"] += tensor.numel() * tensor.element_size()
        return real(*args, **more)

    setattr(dist, name, call)


def measure(strategy: str) -> dict[str, Any]:
    """The parameters that a rank holds, those of the model, and the bytes that are sent by each operation.

    It changes torch for good, so it is called in a process of its own.
    """
    warnings.resetwarnings()
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=WORLD)
    sent: Counter[str] = Counter()
    gather = "all_gather_single" if hasattr(dist, "all_gather_single") else "all_gather_into_tensor"
    reduce = "reduce_scatter_single" if hasattr(dist, "reduce_scatter_single") else "reduce_scatter_tensor"
    watch(gather, lambda *args, **more: args[0] if args else more["output_tensor"], sent)
    watch(reduce, lambda *args, **more: more["input"] if "input" in more else args[1], sent)
    watch("all_reduce", lambda *args, **more: args[0] if args else more["tensor"], sent)
    parallel.UNIT_BYTES = 0
    model = vitrail.create_model("vit-ti16", **CHANGES)
    objective = Supervised(model).train()
    ranks = Ranks(0, WORLD, LOCAL, dist.group.WORLD, dist.group.WORLD)
    settings = ComputeSettings(parallel=strategy, precision="fp32")  # type: ignore[bad-argument-type]
    trained = parallel.parallelise(objective, settings, ranks, torch.device("cpu"))
    local = sum(p.to_local().numel() for p in trained.parameters())  # type: ignore[missing-attribute]
    with FakeTensorMode(allow_non_fake_inputs=True):
        images, targets = torch.randn(2, 3, 32, 32), torch.zeros(2, dtype=torch.long)
        loss, _ = trained(images, targets)
        loss.backward()
    return {"local": local, "parameters": sum(p.numel() for p in objective.parameters()), "sent": dict(sent)}
