"""The network of a training on several ranks: replicated or sharded by FSDP2.

The gradients of all ranks are summed, not averaged: every loss is weighted by its share of the images of the update, so the
gradient is that of one process whatever the number of ranks (Zhao et al. 2023, "PyTorch FSDP").
"""

from __future__ import annotations

import copy
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard, register_fsdp_forward_method

from vitrail.config.schema import ComputeSettings
from vitrail.objectives.contrastive import ContrastiveObjective
from vitrail.objectives.objective import Objective
from vitrail.runtime.distributed import Ranks
from vitrail.runtime.tuning import list_blocks
from vitrail.torch_private import replicate

Kind = TypeVar("Kind", bound=Objective)
UNIT_BYTES = 2**22  # smaller blocks are exchanged together: each exchange has a cost of its own


def parallelise(objective: Kind, compute: ComputeSettings, ranks: Ranks, device: torch.device) -> Kind:
    """Returns a copy of ``objective`` to train, whose parameters are `DTensor` as ``compute.parallel`` says."""
    parallel = copy.deepcopy(objective)
    bf16 = compute.precision == "bf16-weights"
    policy = MixedPrecisionPolicy(
        param_dtype=torch.bfloat16 if bf16 else None, reduce_dtype=torch.float32, cast_forward_inputs=False
    )
    if compute.parallel == "hybrid":
        shape = (ranks.world // ranks.local_world, ranks.local_world)
        mesh = init_device_mesh(device.type, shape, mesh_dim_names=("replicate", "shard"))
    else:
        mesh = DeviceMesh.from_group(ranks.group, device.type)
    apply = replicate if compute.parallel == "replicate" else fully_shard
    for block in list_blocks(parallel):
        if sum(parameter.nbytes for parameter in block.parameters()) < UNIT_BYTES:
            continue
        if compute.compile:
            block.compile()
        apply(block, mesh=mesh, mp_policy=policy)
    apply(parallel, mesh=mesh, mp_policy=policy)
    for module in parallel.modules():
        if isinstance(module, FSDPModule):
            module.set_force_sum_reduction_for_comms(True)
            module.set_gradient_divide_factor(1.0)
            if compute.exact:
                module.set_custom_reduce_scatter(InOrder())  # type: ignore[bad-argument-type]
    if isinstance(parallel, ContrastiveObjective) and parallel.compares_images:
        for verb in ("features", "references", "compare"):
            register_fsdp_forward_method(parallel, verb)
    return parallel


class InOrder:
    """A reduce-scatter that adds the ranks' gradients in their order, so the sum has the bits of one process that adds as many
    micro-batches. It moves the bytes of torch's own; its buffer holds the parts of all ranks.
    """

    def allocate(self, size: Any, *, dtype: torch.dtype, device: torch.device) -> Tensor:
        return torch.empty(*size, dtype=dtype, device=device)

    def __call__(
        self, output_tensor: Tensor, input_tensor: Tensor, group: Any, op: Any, async_op: bool = False
    ) -> None:
        parts = torch.empty_like(input_tensor)
        dist.all_to_all_single(parts, input_tensor, group=group)
        first, *others = parts.view(group.size(), -1)
        for part in others:
            first = first + part
        output_tensor.copy_(first.view_as(output_tensor))
