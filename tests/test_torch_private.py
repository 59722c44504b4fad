"""Public functions give what torch's private ones give. `make test-peers` runs this in the newest torch as well."""

from __future__ import annotations

import gc

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from vitrail import torch_private
from vitrail.models.cost import saved_bytes
from vitrail.torch_private import (
    check,
    convolution,
    copy_,
    fusing,
    has_fused,
    lerp,
    lerp_,
    linear,
    multiply_,
    takes_fused,
)

LISTS = ("lerp", "lerp_", "mul_", "copy_")
TYPES = (torch.float32, torch.bfloat16)
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 2e-2}


def seeded(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def lists(seed: int = 0, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    return [seeded(*shape, seed=seed + place, dtype=dtype) for place, shape in enumerate([(3, 5), (7,), (2, 2, 9)])]


def after_all() -> dict[str, list[Tensor]]:
    """What each function of lists makes of the same tensors."""
    made = {
        "lerp": lerp(lists(), lists(9), 0.3),
        "lerp_": lists(),
        "mul_": lists(),
        "copy_": lists(dtype=torch.bfloat16),
    }
    lerp_(made["lerp_"], lists(9), 0.3)
    multiply_(made["mul_"], 1 - 0.01 * 0.1)
    copy_(made["copy_"], lists(9))
    return made


def test_torch_has_every_private_function():
    assert all(hasattr(torch, f"_foreach_{name}") for name in LISTS)
    assert hasattr(torch, "_check")
    assert {"amx_tile", "avx512_bf16"} <= torch.cpu.get_capabilities().keys() or "x86" not in str(
        torch.cpu.get_capabilities().get("architecture")
    )


def test_functions_of_lists_equal_the_loops_to_the_bit(monkeypatch):
    together = after_all()
    for name in LISTS:
        monkeypatch.delattr(torch, f"_foreach_{name}")
    one_by_one = after_all()
    assert together.keys() == one_by_one.keys() == set(LISTS)
    for name, tensors in together.items():
        assert len(tensors) == 3
        assert all(torch.equal(*pair) for pair in zip(tensors, one_by_one[name], strict=True)), name
    assert not torch.equal(together["lerp_"][0], lists()[0])
    assert together["copy_"][0].dtype == torch.bfloat16


def fused(dtype: torch.dtype) -> None:
    if not has_fused(dtype):
        pytest.skip(f"oneDNN has no {dtype} on this processor")


def test_dense_layers_are_fused_where_onednn_is():
    assert has_fused(torch.float32) == torch.backends.mkldnn.is_available()
    assert not has_fused(torch.float64)
    assert not has_fused(torch.float16)


def test_fused_layers_are_taken_by_wish_else_where_they_were_faster(monkeypatch):
    fused(torch.float32)
    for wanted in (True, False):
        with fusing(wanted):
            assert takes_fused(torch.float32) is wanted
            assert not takes_fused(torch.float64)
    for capability, faster in (("AVX2", False), ("AVX512", True)):
        monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda name=capability: name)
        assert takes_fused(torch.float32) is faster


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize(("biased", "gelu"), [(True, None), (False, "tanh"), (True, "exact")])
def test_a_fused_dense_layer_is_the_public_one(dtype, gelu, biased):
    fused(dtype)
    x, weight = seeded(2, 5, 24, dtype=dtype), seeded(12, 24, seed=1, dtype=dtype) / 5
    bias = seeded(12, seed=2, dtype=dtype) if biased else None
    expected = F.linear(x, weight, bias)
    if gelu:
        expected = F.gelu(expected, approximate="tanh" if gelu == "tanh" else "none")
    error = TOLERANCE[dtype]
    torch.testing.assert_close(linear(x, weight, bias, gelu), expected, atol=error, rtol=error)


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize(
    ("gelu", "window"), [("tanh", (1, 1, 1, 1)), ("exact", (2, 1, 1, 1)), ("tanh", (1, 0, 2, 4))], ids=str
)
def test_a_fused_convolution_is_the_public_one(dtype, gelu, window):
    fused(dtype)
    stride, padding, dilation, groups = window
    options = {"stride": (stride,) * 2, "padding": (padding,) * 2, "dilation": (dilation,) * 2, "groups": groups}
    x, weight, bias = seeded(2, 4, 9, 8, dtype=dtype), seeded(8, 4 // groups, 3, 3, seed=1, dtype=dtype) / 5, None
    expected = F.gelu(F.conv2d(x, weight, bias, **options), approximate="tanh" if gelu == "tanh" else "none")
    error = TOLERANCE[dtype]
    torch.testing.assert_close(convolution(x, weight, bias, gelu, **options), expected, atol=error, rtol=error)


@pytest.mark.parametrize("fault", ["is missing", "refuses", "is wrong"])
def test_a_kernel_that_does_not_do_its_work_is_not_used(monkeypatch, fault):
    def broken(*arguments: object, **options: object) -> Tensor:
        if fault == "is missing":
            raise AttributeError
        if fault == "refuses":
            raise RuntimeError
        return torch.zeros(6, 6)

    fused(torch.float32)
    has_fused.cache_clear()
    with monkeypatch.context() as patch:
        patch.setattr(torch_private, "linear", broken)
        assert not has_fused(torch.float32)
    has_fused.cache_clear()
    assert has_fused(torch.float32)


def test_the_probe_draws_no_random_number_and_works_on_any_default_device():
    has_fused.cache_clear()
    before = torch.get_rng_state()
    with torch.device("meta"), torch.autocast("cpu", dtype=torch.bfloat16):
        assert has_fused(torch.float32) == torch.backends.mkldnn.is_available()
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("private", [True, False])
def test_a_changed_private_api_is_an_error(monkeypatch, private):
    if not private:
        monkeypatch.delattr(torch, "_check")
    check(3 >= 2)
    with pytest.raises(RuntimeError):
        check(3 >= 4)


def test_a_storage_is_one_object_as_long_as_a_tensor_has_it():
    tensor = torch.zeros(4, 4)
    first = id(tensor.untyped_storage())
    gc.collect()
    others = [torch.zeros(4, 4) for _ in range(20)]
    assert id(tensor[1:].T.untyped_storage()) == first
    assert first not in {id(other.untyped_storage()) for other in others}


def test_saved_bytes_count_each_storage_once():
    with torch.device("meta"):
        model, images = torch.nn.Linear(8, 4), torch.empty(3, 8)
    squares = torch.nn.Sequential(model, torch.nn.GELU())
    assert saved_bytes(squares, images) == 4 * (3 * 8 + 3 * 4)  # what the matrix and what GELU read


def test_a_mode_sees_every_operation():
    class Seen(torch_private.TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            names.append(str(func))
            return func(*args, **(kwargs or {}))

    names: list[str] = []
    with Seen():
        torch.zeros(2) + 1
    assert any(name.startswith("aten.add") for name in names)
