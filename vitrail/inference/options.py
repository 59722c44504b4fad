"""How a model and its images are read, as every verb that uses a model takes it, and the fastest way to compute on a CPU."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from vitrail import weights
from vitrail.data.sources.bad_images import MAX_BAD, BadImages
from vitrail.data.sources.source import Source
from vitrail.errors import ConfigError
from vitrail.inference.views import check_views
from vitrail.models import device_of, sketch
from vitrail.models.layers import Conv
from vitrail.runtime.device import find_device, in_precision
from vitrail.runtime.distributed import SINGLE, Ranks
from vitrail.runtime.progress import LogFunction
from vitrail.runtime.tuning import ExecutionPlan, list_threads, recall_plan
from vitrail.tasks.task import WINDOWS, Task, Views, choose_windows
from vitrail.torch_private import has_fused, takes_fused
from vitrail.untrusted.limits import PIXELS
from vitrail.weights.onnx import ExportedBackbone
from vitrail.weights.openvino import OpenVINOSession
from vitrail.weights.resolve import resolve_model


@dataclass(frozen=True, kw_only=True)
class InferenceOptions:
    """How a model and its images are read; what every verb that uses a model has in common.

    ``size``, ``grid``, ``preprocessing`` and ``classes``, a file of names, are what weights do not state, as `vitrail.load` takes
    them.
    ``zoom`` is how many times as large pictures are shown in windows, as `Task.predict` takes it. With ``tta`` outputs are means
    (`average_views`). Files of more than ``max_pixels`` are bad. With ``tune`` a verb may time the network's blocks on a CPU for
    the fastest ``plan`` (`tune_options`). The precision ``auto`` is to be settled before anything is computed
    (`settle_precision`).
    """

    size: tuple[int, int] | None = None
    grid: tuple[int, int] | None = None
    preprocessing: Mapping[str, Any] = field(default_factory=dict)
    classes: Path | None = None
    zoom: float = 1.0
    tta: Views | None = None
    batch: int = 64
    workers: int = 0
    device: str | None = None
    precision: str = "fp32"
    tune: bool = False
    plan: ExecutionPlan | None = None
    on_bad: Literal["skip", "stop"] = "skip"
    max_bad: float = MAX_BAD
    max_pixels: int = PIXELS
    quiet: bool = False

    def __post_init__(self) -> None:
        for name, least in (("batch", 1), ("workers", 0), ("max_pixels", 1)):
            if getattr(self, name) < least:
                raise ConfigError(f"{name} is {getattr(self, name)}", f"give {least} or more")

    def of_rank(self, ranks: Ranks) -> InferenceOptions:
        """Returns the options of one of several processes: its share of the ``workers``; rank 0 alone shows progress."""
        if ranks.is_single:
            return self
        return replace(self, workers=-(-self.workers // ranks.local_world), quiet=self.quiet or not ranks.first)

    def load(self, model: str | Path | Task, log: LogFunction) -> Task:
        """Returns the model, on its device and ready to predict; a `Task` is taken as it is.

        Raises `ConfigError` for a `Task` with options that only a loaded model can follow, and as `weights.load`.
        """
        if isinstance(model, Task):
            if self.size or self.grid or self.preprocessing or self.classes:
                what = "classes, a size, a grid or preprocessing were given for a model in memory, which has its own"
                raise ConfigError(what, "change the model, as by model.preprocessing.override(...), or load it anew")
        else:
            if str(model) == "latest":
                log(f"model    {resolve_model(model).name}, the newest finished run")
            known = {"image_size": self.size, "grid": self.grid, "preprocessing": self.preprocessing}
            model = weights.load(model, classes_file=self.classes, log=log, **known)
        if isinstance(model.backbone, ExportedBackbone):
            self._set_up_graph(model.backbone)
        choose_windows(model, self.zoom)  # refused before any image is read
        check_views(model, self.tta)
        return model.to(find_device(self.device)).eval()

    def compute(self, verb: Callable[[Tensor], Tensor], images: Tensor) -> Tensor:
        """Returns what ``verb`` gives for ``images`` (B, C, H, W), in fp32: computed in the precision, on a CPU by the plan."""
        if self.plan is None:
            with in_precision(self.precision, images.device):
                return verb(images).float()
        with self.plan.within():
            return verb(self.plan.to_memory_format(images)).float()

    def record_bad(self, source: Source, path: Path | None = None) -> BadImages:
        """Records the bad images of ``source`` by the policy of these options, in the file ``path`` too.

        Of an existing file only the entries of these images count.
        """
        keys = frozenset(map(str, source.keys))
        return BadImages(self.on_bad, self.max_bad, path, total=len(source), keys=keys)

    def _set_up_graph(self, graph: ExportedBackbone) -> None:
        """Compiles an OpenVINO graph for the precision. Raises `ConfigError` for what a graph cannot be asked for."""
        if isinstance(graph.session, OpenVINOSession) and self.precision == "bf16":
            graph.session.compile(self.precision)
        elif self.precision not in ("fp32", "auto"):
            what = f"the precision of an exported graph is in it, and {self.precision} was asked for"
            raise ConfigError(what, "leave --precision out, or take the model that it was exported from")
        if self.device not in (None, "cpu"):
            what = f"an exported graph runs on the CPU, and {self.device} was asked for"
            raise ConfigError(what, "leave --device out, or take the model that it was exported from")


def tune_options(
    options: InferenceOptions, model: Task, log: LogFunction, *, images: float = math.inf, ranks: Ranks = SINGLE
) -> InferenceOptions:
    """Returns ``options`` with the plan that is fastest for ``model`` on this processor, where they let it be measured.

    What was measured before is taken; otherwise it is measured if so many ``images`` are worth it (`choose_plan`). The ranks
    take what the first one finds.
    """
    if not options.tune or device_of(model).type != "cpu" or isinstance(model.backbone, ExportedBackbone):
        return options
    network = sketch(model.config)
    plans = list_plans(options.precision, torch.get_num_threads(), maps=convolves_maps(network), ranks=ranks)
    if len(plans) == 1:
        return options
    batch = options.batch if options.zoom == 1 else min(options.batch, WINDOWS)
    image = (model.config.in_channels, *model.preprocessing.size)
    named = {"config": repr(model.config), "about": model.about}
    how = {"batch": batch, "gradient": False, "images": images / ranks.world}
    choice = ranks.broadcast(recall_plan(network, image, plans, **how, **named))
    if choice is None:
        return options
    log(f"tuned    {choice}")
    return replace(options, plan=choice.plan)


def list_plans(precision: str, threads: int, *, maps: bool, ranks: Ranks = SINGLE) -> list[ExecutionPlan]:
    """Returns the plans that are timed, in their order; ``maps`` is that of `convolves_maps`."""
    counts = list_threads(threads) if ranks.is_single else [threads]
    layouts = [False, True] if maps else [False]
    dtype = torch.bfloat16 if precision == "bf16" else torch.float32
    layers = sorted([True, False], key=lambda fused: fused != takes_fused(dtype)) if has_fused(dtype) else [None]
    ways = product(layouts, layers, counts)
    return [ExecutionPlan(precision, count, layout, fused) for layout, fused, count in ways]


def convolves_maps(network: nn.Module) -> bool:
    """Whether ``network`` has convolutions besides the projection of patches, which is a dense layer."""
    return any(isinstance(module, Conv) for module in network.modules())
