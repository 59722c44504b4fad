"""Measures time and memory of a model against image size and patch size, images per second of several models, and the largest
batch that fits in memory (Dosovitskiy et al. 2021, sections 3.1 and 4.1, appendix D.5). The number of tokens grows with the image
area and with the inverse square of the patch side, attention with the square of the number of tokens.

`vitrail.models.cost_of` counts operations; this module runs the model, in its default mode and with explicit attention
matrices. The matrices need quadratic memory; fused attention needs quadratic time but never stores them.

B images, C channels, H x W pixels, T tokens.
"""

from __future__ import annotations

import math
import statistics
import weakref
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import count
from typing import Any, NamedTuple

import torch
from torch import Tensor

from vitrail.analysis.equivariance import Model, Pair
from vitrail.errors import ConfigError
from vitrail.models import Config, cost_of, create_backbone, sketch
from vitrail.models.backbone import device_of, eval_mode
from vitrail.models.config import changed
from vitrail.models.cost import image_for
from vitrail.runtime.timing import time_in_turns
from vitrail.torch_private import TorchDispatchMode

LIMIT = 2 << 30  # bytes of attention matrices; a pass with them needs more
REPEATS = 3  # timed passes
LARGEST = 1024  # pixels of the longer side of `choose_sizes`
FACTORS = (1, 1.5, 2, 3)  # of the smallest side; 3 makes nine times the patches
LARGEST_BATCH = 8192  # images; the search for the largest batch ends here
NEAR = 32  # the search ends when the largest batch is known to one part in 32


class CostPoint(NamedTuple):
    """The cost of a forward pass at one image size and one patch size, in pixels."""

    size: Pair
    patch_size: Pair
    tokens: int  # after the last block
    seconds: float  # per image, the median of the timed passes
    bytes: int  # peak memory of the tensors of one pass over all B images, without parameters and images
    plain_seconds: float | None  # of `forward_with_attention`, which keeps the attention matrices of all layers
    plain_bytes: int | None
    multiply_adds: int  # per image


def measure_cost(model: Model, sizes: Sequence[int | Pair], *, batch: int = 1) -> list[CostPoint]:
    """Measures a forward pass without gradients at each size, on ``batch`` random images, on the device of the model.

    One pass warms up, `REPEATS` are timed, and one more measures memory. A single CPU thread is timed by its processor time,
    which depends little on other processes; everything else by wall-clock time. On CUDA, bytes are those of the allocator;
    elsewhere those of all tensors that operations return, without the workspace of kernels (fused attention on a CPU uses
    0.13 MB in a ViT-Ti at any size). Sizes at which attention matrices take more than `LIMIT` are measured without them.

    Raises `ConfigError` for an invalid size, (height, width) or the side of a square, before any measurement.
    """
    configs = [changed(model.config, image_size=size) for size in sizes]
    # inference mode dispatches composite operations whole, so that their inner tensors would not be counted
    with torch.inference_mode(False), eval_mode(model):
        return [_measure_point(model, config, batch) for config in configs]


def measure_cost_by_patch(
    config: Config, patch_sizes: Sequence[Pair], device: str | torch.device = "cpu"
) -> list[CostPoint]:
    """Calls `measure_cost` for new models that differ from ``config`` in patch size only."""
    models = (create_backbone(changed(config, patch_size=patch_size)).to(device) for patch_size in patch_sizes)
    return [point for model in models for point in measure_cost(model, [config.image_size])]


def fit_growth(points: Sequence[CostPoint], what: str) -> float:
    """Fits the exponent p of figure = a T^p by least squares of logarithms; NaN without two different token counts.

    ``what`` is a field of `CostPoint`; measurements in which it is None or zero are ignored.
    """
    pairs = [(math.log(point.tokens), math.log(figure)) for point in points if (figure := getattr(point, what))]
    if len({tokens for tokens, _ in pairs}) < 2:
        return math.nan
    return statistics.linear_regression(*zip(*pairs)).slope


def choose_sizes(config: Config) -> list[Pair]:
    """Returns image sizes to measure: 1, 1.5, 2 and 3 times the size of the model, rounded down to whole patches (of the last
    stage in a pyramid). The size of the model is first halved until the largest size is at most 1,024 pixels.

    Raises `ConfigError` for patches so large that fewer than three fit along 1,024 pixels.
    """
    grids = sketch(config).attention_grids(config.image_size)
    cell = grids[-1].cell if grids else config.patch_size
    if max(cell) * max(FACTORS) > LARGEST:
        what = f"{LARGEST} pixels hold fewer than {max(FACTORS)} patches of {'x'.join(map(str, cell))}"
        raise ConfigError(what, "give the image sizes explicitly")
    halved = next(times for times in count() if max(config.image_size) * max(FACTORS) <= LARGEST << times)
    rows, columns = (max((length >> halved) // pixels, 1) for length, pixels in zip(config.image_size, cell))
    sizes = ((int(rows * factor) * cell[0], int(columns * factor) * cell[1]) for factor in FACTORS)
    return list(dict.fromkeys(sizes))


def count_matrix_bytes(config: Config) -> int:
    """Counts the bytes of all attention matrices of one image on the meta device; 0 without attention."""
    backbone = sketch(config)
    if not backbone.attention_grids(config.image_size):
        return 0
    with torch.no_grad():
        return sum(matrix.nbytes for matrix in backbone.forward_with_attention(image_for(backbone))[1])


def measure_peak_bytes(step: Callable[[], object], device: torch.device) -> int:
    """Returns the peak memory in bytes of the tensors that ``step`` allocates, including its result."""
    if device.type != "cuda":
        with _StorageTracker() as made:
            step()
        return made.peak
    torch.cuda.synchronize(device)
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    step()
    torch.cuda.synchronize(device)
    return torch.cuda.max_memory_allocated(device) - before


class _StorageTracker(TorchDispatchMode):
    """Tracks storages allocated by operations until they are freed. Storages from outside are not counted."""

    def __init__(self) -> None:
        super().__init__()
        self.live: dict[int, weakref.ref] = {}  # by id, which may be reused after a storage is freed
        self.outer: dict[int, torch.UntypedStorage] = {}  # kept alive, so that their ids are not reused
        self.held = self.peak = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        for storage in _list_storages((args, kwargs)):
            if id(storage) not in self.live:
                self.outer[id(storage)] = storage
        made = func(*args, **kwargs)
        for storage in _list_storages(made):
            if id(storage) not in self.live and id(storage) not in self.outer:
                self.live[id(storage)] = weakref.ref(storage, partial(self._free, id(storage), storage.nbytes()))
                self.held += storage.nbytes()
        self.peak = max(self.peak, self.held)
        return made

    def _free(self, storage: int, size: int, _: weakref.ref) -> None:
        del self.live[storage]
        self.held -= size


def _list_storages(tree: Any) -> list[torch.UntypedStorage]:
    """Returns the storages of all tensors in nested arguments or results."""
    if isinstance(tree, Tensor):
        return [tree.untyped_storage()]
    branches = tree.values() if isinstance(tree, dict) else tree if isinstance(tree, tuple | list) else ()
    return [storage for branch in branches for storage in _list_storages(branch)]


def _measure_point(model: Model, config: Config, batch: int) -> CostPoint:
    cost, like = cost_of(config), next(model.parameters())
    generator = torch.Generator().manual_seed(0)
    images = torch.randn(batch, config.in_channels, *config.image_size, generator=generator, device="cpu").to(like)

    def measure(verb: Callable[[Tensor], object]) -> tuple[float, int]:
        step = partial(verb, images)
        timing = time_in_turns({"pass": step}, rounds=REPEATS, device=like.device)["pass"]
        is_one_thread = like.device.type == "cpu" and torch.get_num_threads() == 1
        seconds = statistics.median(timing.processor_seconds) if is_one_thread else timing.median
        return seconds / batch, measure_peak_bytes(step, like.device)

    seconds, most = measure(model)
    has_matrices = 0 < batch * count_matrix_bytes(config) <= LIMIT
    plain_seconds, plain_most = measure(model.forward_with_attention) if has_matrices else (None, None)
    sizes = config.image_size, config.patch_size
    return CostPoint(*sizes, cost.tokens, seconds, most, plain_seconds, plain_most, cost.multiply_adds)


class Speed(NamedTuple):
    """Images per second in passes of ``batch`` images: the median of the passes, the slowest and the fastest."""

    batch: int
    median: float
    slowest: float
    fastest: float


def measure_speeds(
    models: Mapping[str, Model],
    size: Pair,
    batches: Mapping[str, int],
    *,
    repeats: int = 5,
    on_pass: Callable[[], object] = lambda: None,
) -> dict[str, Speed]:
    """Measures passes without gradients at one image size, by wall-clock time, on random images.

    The models, all on one device, take turns (`time_in_turns`), after one pass of each to warm up.

    Args:
        batches: B by model.
        repeats: number of timed passes of each model.
        on_pass: called after each pass, such as for progress.
    """
    passes = {name: partial(model, _make_images(model, batches[name], size)) for name, model in models.items()}
    device, within = device_of(next(iter(models.values()))), lambda name: eval_mode(models[name])
    timings = time_in_turns(passes, rounds=repeats, device=device, within=within, on_call=on_pass)
    speeds = {}
    for name, timing in timings.items():
        batch = batches[name]
        speeds[name] = Speed(batch, batch / timing.median, batch / max(timing.seconds), batch / timing.fastest)
    return speeds


def find_largest_batch(step: Callable[[int], object], most: int = LARGEST_BATCH) -> int:
    """Finds the largest batch up to ``most`` for which ``step`` does not run out of memory, by doubling, then by bisection; 0 if
    one image is too many. Batches larger by more than one part in `NEAR`, or by more than one image, were not possible.
    """
    low = 0
    while low < most and _fits(step, min(2 * low or 1, most)):
        low = min(2 * low or 1, most)
    high = min(2 * low or 1, most)  # does not fit, unless it is ``most``
    while low < most and high - low > max(low // NEAR, 1):
        middle = (low + high) // 2
        low, high = (middle, high) if _fits(step, middle) else (low, middle)
    return low


def _fits(step: Callable[[int], object], batch: int) -> bool:
    fits = True
    try:
        step(batch)
    except torch.OutOfMemoryError:
        fits = False
    torch.cuda.empty_cache()  # only now: the traceback of the error kept all tensors alive
    return fits


def run_largest_batch(model: Model, size: Pair) -> int:
    """Returns `find_largest_batch` of a pass without gradients, for a model on a GPU."""

    def step(batch: int) -> None:
        model(_make_images(model, batch, size))
        torch.accelerator.synchronize(device)

    with eval_mode(model) as device:
        return find_largest_batch(step)


class Memory(NamedTuple):
    """Bytes of the tensors of a pass: ``fixed``, and for each image."""

    fixed: int
    each: int

    def largest_batch(self, free: int) -> int:
        """Returns the largest batch whose tensors take at most ``free`` bytes."""
        return max((free - self.fixed) // self.each, 0)


def measure_memory(model: Model, size: Pair) -> Memory:
    """Measures the tensors of passes of one and two images, including the images."""

    def peak(batch: int) -> int:
        return measure_peak_bytes(lambda: model(_make_images(model, batch, size)), device_of(model))

    # inference mode dispatches composite operations whole, so that their inner tensors would not be counted
    with torch.inference_mode(False), eval_mode(model):
        one, two = peak(1), peak(2)
    return Memory(max(2 * one - two, 0), max(two - one, 1))


def bound_bytes(config: Config, size: Pair) -> int:
    """Returns an upper bound of the bytes of a pass of one image at ``size``, counted without allocating memory. It includes
    whole attention matrices, which fused attention does not need. Raises `ConfigError` if the model does not support the size.
    """
    network = sketch(changed(config, image_size=size)).eval()
    images = torch.empty(1, config.in_channels, *size, device="meta")
    with torch.no_grad():
        return measure_peak_bytes(lambda: network(images), images.device) + images.nbytes


def _make_images(model: Model, batch: int, size: Pair) -> Tensor:
    like = next(model.parameters())
    return torch.randn(batch, model.config.in_channels, *size, dtype=like.dtype, device=like.device)
