"""What the package takes from torch beyond its documented functions; no other file names a private attribute of torch.

Everything here has a probe, whether it is there and works, and the same by public functions alone where it does not. The tests
hold both equal, in the lowest and in the newest version of torch that is supported.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from itertools import repeat
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

# under this name in torch's own documentation ("Extending PyTorch"); there is no public one, and so no other way
from torch.utils._python_dispatch import TorchDispatchMode as TorchDispatchMode
from torch.utils._pytree import tree_map_only as tree_map_only

Tensors = Sequence[Tensor]
APPROXIMATIONS = {"tanh": "tanh", "exact": "none"}  # of GELU; torch's words and oneDNN's are the same


# Lists of tensors: one kernel for all of them on a GPU, where the obvious loop starts one for each.


def _apply_to_each(name: str, tensors: Tensors, *operands: Tensors | float) -> list[Tensor]:
    """Calls the method ``name`` of each tensor with its element of each operand, or with a number."""
    together = getattr(torch, f"_foreach_{name}", None)
    if together is not None:
        return list(together(tensors, *operands) or ())  # None in place
    columns = [repeat(operand, len(tensors)) if isinstance(operand, int | float) else operand for operand in operands]
    return [getattr(tensor, name)(*rest) for tensor, *rest in zip(tensors, *columns, strict=True)]


def lerp(starts: Tensors, ends: Tensors, weight: float) -> list[Tensor]:
    """``start + weight (end - start)`` of each pair."""
    return _apply_to_each("lerp", starts, ends, weight)


def lerp_(starts: Tensors, ends: Tensors, weight: float) -> None:
    """`lerp` in place of ``starts``."""
    _apply_to_each("lerp_", starts, ends, weight)


def multiply_(tensors: Tensors, factor: float) -> None:
    """Each tensor times ``factor``, in place."""
    _apply_to_each("mul_", tensors, factor)


def copy_(tensors: Tensors, sources: Tensors) -> None:
    """Each source copied into its tensor, whatever the type of either."""
    _apply_to_each("copy_", tensors, sources)


# Dense layers and convolutions on a CPU: oneDNN adds bias and GELU inside its product. No operation here has a gradient.


def linear(x: Tensor, weight: Tensor, bias: Tensor | None, gelu: str | None) -> Tensor:
    """``x @ weight.T + bias``, then GELU where ``gelu`` names one ("tanh" or "exact"); where `has_fused` says so."""
    kind, algorithm = ("gelu", APPROXIMATIONS[gelu]) if gelu else ("none", "")
    return torch.ops.mkldnn._linear_pointwise(x, weight, bias, kind, [], algorithm)


def convolution(x: Tensor, weight: Tensor, bias: Tensor | None, gelu: str, **window: Any) -> Tensor:
    """A convolution with the ``window`` (padding, stride, dilation, groups), then GELU; where `has_fused` says so."""
    shape = (window[name] for name in ("padding", "stride", "dilation", "groups"))
    return torch.ops.mkldnn._convolution_pointwise(x, weight, bias, *shape, "gelu", [], APPROXIMATIONS[gelu])


_wanted: ContextVar[bool | None] = ContextVar("fused", default=None)


@contextmanager
def fusing(wanted: bool) -> Iterator[None]:
    """Inside the context `takes_fused` is ``wanted`` where `has_fused` is true, in place of what its table says."""
    token = _wanted.set(wanted)
    try:
        yield
    finally:
        _wanted.reset(token)


def takes_fused(dtype: torch.dtype) -> bool:
    """Whether layers take `linear` and `convolution`: as `fusing` says, else where they were faster.

    On an EPYC without AVX-512 oneDNN's fp32 products ran at 65 Gflop/s, at 50 with GELU, and MKL's at 80; ViTs were 1.06 to 1.15
    times as fast without (benchmarks/paths.py). With AVX-512, and in bf16, it was the other way round.
    """
    wanted = _wanted.get()
    if wanted is None:
        wanted = dtype != torch.float32 or torch.backends.cpu.get_cpu_capability() != "AVX2"
    return wanted and has_fused(dtype)


@cache
def has_bf16() -> bool:
    """Whether oneDNN computes in bf16 on this processor."""
    try:
        return torch.ops.mkldnn._is_mkldnn_bf16_supported()
    except (AttributeError, NotImplementedError, RuntimeError):
        return False


@cache
def has_fused(dtype: torch.dtype) -> bool:
    """Whether `linear` and `convolution` are there for ``dtype`` on this processor, and compute what they should."""
    try:
        known = dtype == torch.float32 or (dtype == torch.bfloat16 and has_bf16())
        return torch.backends.mkldnn.is_available() and known and _is_right(dtype)
    except (AttributeError, NotImplementedError, RuntimeError, TypeError):
        return False


@torch.no_grad()
def _is_right(dtype: torch.dtype) -> bool:
    """Both, on a few numbers, against public functions."""
    with torch.autocast("cpu", enabled=False):
        numbers = torch.linspace(-2, 2, 36, dtype=dtype, device="cpu")
        x, weight, bias = numbers.view(6, 6), numbers.flip(0).view(6, 6) / 4, numbers[:6]
        image, kernel = numbers.view(1, 1, 6, 6), numbers[:9].view(1, 1, 3, 3)
        window = {"stride": (1, 1), "padding": (1, 1), "dilation": (1, 1), "groups": 1}
        pairs = [(linear(x, weight, bias, None), F.linear(x, weight, bias))]
        for gelu, approximation in APPROXIMATIONS.items():
            plain = F.gelu(F.linear(x, weight, bias), approximate=approximation)
            pairs.append((linear(x, weight, bias, gelu), plain))
            plain = F.gelu(F.conv2d(image, kernel, bias[:1], **window), approximate=approximation)
            pairs.append((convolution(image, kernel, bias[:1], gelu, **window), plain))
        error = 1e-4 if dtype == torch.float32 else 0.1
        return all(torch.allclose(fused.float(), plain.float(), atol=error, rtol=error) for fused, plain in pairs)


def check(condition: Any) -> None:
    """Tells a graph that is being exported what holds for a length that it does not know; elsewhere makes sure of it."""
    tell = getattr(torch, "_check", None)
    if tell is not None:
        tell(condition)
    elif not condition:
        raise RuntimeError("a length is not what the graph was told")


# Several ranks. torch.distributed.fsdp takes a second to load, and few runs need it.


def replicate(module: Any, *, mesh: Any, mp_policy: Any) -> Any:
    """Gives each rank of a mesh (W,) the whole of the parameters, and all of them the sum of their gradients."""
    try:
        from torch.distributed._composable.replicate_with_fsdp import replicate as by_fsdp
    except ImportError:  # sharded over one rank, which is the same by public functions
        from torch.distributed.device_mesh import DeviceMesh
        from torch.distributed.fsdp import fully_shard

        ranks = torch.arange(mesh.size()).view(-1, 1)
        columns = DeviceMesh(mesh.device_type, ranks, mesh_dim_names=("replicate", "shard"))
        return fully_shard(module, mesh=columns, mp_policy=mp_policy)
    return by_fsdp(module, mesh=mesh, mp_policy=mp_policy)
