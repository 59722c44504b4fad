"""Chooses what computes the answers of ``predict --fast``: PyTorch as it is or compiled, or a graph in another runtime.

B images, C channels, H and W their size.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from vitrail.data.sources.source import Source
from vitrail.errors import VitrailError
from vitrail.exports.graph import to_onnx
from vitrail.exports.openvino import to_openvino
from vitrail.exports.quantise import to_int8
from vitrail.files import cache_folder, replace_folder, stage_folder
from vitrail.inference.comparison import MAX_DIFFERENCE, Comparison, compare_outputs, read_few
from vitrail.inference.features import digest_of
from vitrail.inference.options import InferenceOptions
from vitrail.models.backbone import device_of
from vitrail.runtime.machine import versions
from vitrail.runtime.progress import LogFunction, duration
from vitrail.runtime.timing import time_call, time_in_turns
from vitrail.runtime.tuning import MIN_GAIN
from vitrail.tasks.task import Task
from vitrail.weights import load
from vitrail.weights.adapt import fit_to_crop
from vitrail.weights.description import KEY, describe
from vitrail.weights.onnx import ExportedBackbone, add_checksum_to_onnx
from vitrail.weights.openvino import add_checksum_to_openvino

WORTH = 600.0  # seconds of work in PyTorch from which others are tried: each takes up to two minutes to be made
COMPARED = 128  # images, of which int8 may change the answers of 4 %
CALIBRATED = 64  # images that set the ranges of activations in OpenVINO's int8
MAX_ROUNDS, MIN_ROUNDS, SECONDS = 12, 3, 20.0  # limits of the measurement
GIVE_UP_RATIO = 1.5


@dataclass(frozen=True)
class Runtime:
    """What computes the outputs of a model.

    Args:
        verb: maps normalised images (B, C, H, W) to the outputs.
        options: by which ``verb`` is called.
        max_difference: of the outputs from those in fp32, as a share of the largest output.
        comparison: of the outputs with those in fp32, by which this was taken.
    """

    verb: Callable[[Tensor], Tensor]
    options: InferenceOptions
    max_difference: float = MAX_DIFFERENCE
    comparison: Comparison | None = None

    @torch.inference_mode()
    def compute(self, images: Tensor) -> Tensor:
        return self.options.compute(self.verb, images)


def choose_runtime(task: Task, options: InferenceOptions, log: LogFunction, *, source: Source) -> Runtime:
    """Returns the fastest runtime whose answers for some images of ``source`` are those of fp32, and logs which one and why.

    PyTorch with ``options`` is taken on a GPU, for an exported graph, without ``options.tune``, where it needs less than `WORTH`
    seconds for the whole ``source``, and where no other runtime saves `MIN_GAIN` of its time.
    """
    pytorch = Runtime(task, options)
    if isinstance(task.backbone, ExportedBackbone) or device_of(task).type != "cpu" or not options.tune:
        return pytorch
    images = next(read_few(task, source, options), None)
    if images is None:  # none can be read, which reading all of them reports
        return pytorch
    pytorch.compute(images)
    needed = time_call(partial(pytorch.compute, images)) * len(source) / len(images)
    if needed < WORTH:
        log(
            f"fast     PyTorch: the images need {duration(needed)}, and other runtimes are tried from {duration(WORTH)}"
        )
        return pytorch
    own = f"PyTorch {options.precision}"
    runtimes = {own: pytorch, **dict(_make_others(task, options, source, images, log))}
    verbs = {name: partial(runtime.compute, images) for name, runtime in runtimes.items()}
    limits = {"rounds": MAX_ROUNDS, "min_rounds": MIN_ROUNDS, "seconds": SECONDS, "give_up_ratio": GIVE_UP_RATIO}
    # one thread may be timed by its share of the processor, whatever else runs there
    clock = time.process_time if torch.get_num_threads() == 1 else time.perf_counter
    seconds = {name: timing.median for name, timing in time_in_turns(verbs, **limits, clock=clock).items()}
    ranked = sorted(seconds, key=seconds.__getitem__)
    exact = partial(replace(options, precision="fp32", plan=None).compute, task)
    figures = ", ".join(f"{name} {1e3 * seconds[name] / len(images):.3g}" for name in ranked)
    for name in ranked:
        runtime = runtimes[name]
        if seconds[name] > (1 - MIN_GAIN) * seconds[own]:
            break
        found = compare_outputs(exact, runtime.compute, read_few(task, source, options, COMPARED), task)
        if found.holds(runtime.max_difference):
            log(f"fast     {name}; ms of an image: {figures}; {found}")
            return replace(runtime, comparison=replace(found, runtime=name))
        log(f"fast     {name} is not taken: {found}")
    log(f"fast     PyTorch; ms of an image: {figures}")
    return pytorch


def _make_others(
    task: Task, options: InferenceOptions, source: Source, images: Tensor, log: LogFunction
) -> Iterator[tuple[str, Runtime]]:
    """Yields the other runtimes that compute ``images``, by name; of each that does not, the reason is logged."""
    export = partial(_export, fit_to_crop(task, log), options, source)
    makers: Mapping[str, Callable[[], Runtime]] = {
        f"compiled {options.precision}": lambda: Runtime(torch.compile(task.forward), options),
        "ONNX Runtime fp32": export,
        "ONNX Runtime int8": partial(export, int8=True),
        f"OpenVINO {options.precision}": partial(export, to="openvino"),
        "OpenVINO int8": partial(export, to="openvino", int8=True),
    }
    for name, make in makers.items():
        log(f"making   {name}")
        try:
            runtime = make()
            runtime.compute(images)
        except Exception as error:  # those of compilers and runtimes have no common base class
            reason = (
                error.what if isinstance(error, VitrailError) else f"{type(error).__name__}: {error}".splitlines()[0]
            )
            log(f"fast     {name} is left out: {reason}")
        else:
            yield name, runtime


def _export(
    task: Task,
    options: InferenceOptions,
    source: Source,
    *,
    to: Literal["onnx", "openvino"] = "onnx",
    int8: bool = False,
) -> Runtime:
    """Returns the model as a graph of another runtime, which is kept in the cache for the next command."""
    name = "-".join((digest_of(task)[:32], *map(versions().__getitem__, ("torch", "vitrail"))))
    metadata = {KEY: json.dumps(describe(task), ensure_ascii=False)}
    path = _keep_graph(f"{name}/model.onnx", partial(to_onnx, task, metadata=metadata))
    if to == "openvino":
        few = read_few(task, source, options, CALIBRATED) if int8 else ()
        calibration = [image for images in few for image in images.split(1)]  # (1, C, H, W) each
        write = partial(to_openvino, path, metadata=metadata, calibration=calibration or None)
        path = _keep_graph(f"{name}-openvino{'-int8' if int8 else ''}/model.xml", write)
    elif int8:
        path = _keep_graph(f"{name}-int8/model.onnx", partial(to_int8, path))
    graph = load(path, log=lambda line: None).eval()
    assert isinstance(graph.backbone, ExportedBackbone)
    if to == "openvino":  # in int8 the layers that are left out
        graph.backbone.session.compile(options.precision)
    fp32 = replace(options, precision="fp32", plan=None)
    return Runtime(graph, fp32, max_difference=math.inf if int8 else MAX_DIFFERENCE)


def _keep_graph(name: str, write: Callable[[Path], object]) -> Path:
    """Returns the file FOLDER/FILE of the cache; ``write`` makes it where it is absent."""
    path = cache_folder("graphs") / name
    if not path.is_file():
        with stage_folder(path.parent, {}) as aside:
            made = aside / path.name
            write(made)
            (add_checksum_to_openvino if path.suffix == ".xml" else add_checksum_to_onnx)(made)
            replace_folder(path.parent, aside)
    return path
