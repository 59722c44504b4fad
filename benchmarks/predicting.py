"""`vitrail.predict` from JPEG files to answers, and the model alone, beside timm, transformers' pipeline and OpenVINO.

    python benchmarks/predicting.py photographs/ --models vit-ti16 --weights vit_tiny_patch16_224.safetensors --images 32

A step answers for the same files, all contenders with the same weights and one thread, in turns. ``--modes model`` measures
the networks on those images in memory. Of vitrail: fp32; the default, which settles the precision by the images; ``--fast``;
and what `vitrail export` writes, in ONNX and OpenVINO. Each reads a job of 100,000 images, a step the next of them: a
precision or a runtime is chosen once for such a job, and what that took is recorded beside the rates. Of the others: timm's
transform and network (eager, in bf16, compiled), transformers' pipeline with the weights that `vitrail convert` writes, and
timm's network as OpenVINO converts it, in its own default, which is bf16 where the processor has it (its contenders need
``pip install 'vitrail[openvino]'``; what cannot be made is left out with the reason).

Processor time of all threads is counted, since files are read by a thread ahead of the network: a step waits until it is done.

Weights other than ``--weights`` are random, but for the head, whose classes are the files themselves: so that answers are
apart and can be compared. Before anything is timed, the share of images with the answer of vitrail in fp32 is printed.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import harness
import safetensors.torch
import timm
import timm.data
import timm.models
import torch
import transformers
from PIL import Image
from step import TIMM
from torch import Tensor, nn

import vitrail
from vitrail.errors import VitrailError
from vitrail.inference.options import InferenceOptions, tune_options
from vitrail.runtime.openvino_runtime import import_openvino
from vitrail.runtime.progress import log_nothing

JOB = 100_000  # images of a job, of which a step takes the next
MARGIN = 10.0  # logit of a file's own class, with random weights
BRANCH = 0.1  # of the residual branches of a BiT with random weights, whose features in bf16 are else off by a third
SAME = 0.96  # share of the answers of vitrail in fp32 that timm's own in fp32 must give
SETTLED = ("precision", "fast")  # the lines of the log that say what was chosen
Compute = Callable[[Tensor], Tensor]  # images (B, C, H, W), normalised -> logits (B, K)
EXPORTS: Mapping[str, tuple[str, dict[str, Any], str]] = {  # file, options of the export, precision
    ".onnx": ("model.onnx", {"to": "onnx"}, "fp32"),
    ".onnx int8": ("int8.onnx", {"to": "onnx", "int8": True}, "fp32"),
    "OpenVINO fp32": ("model.xml", {"to": "openvino"}, "fp32"),
    "OpenVINO bf16": ("model.xml", {"to": "openvino"}, "bf16"),
    "OpenVINO int8": ("int8.xml", {"to": "openvino", "int8": True}, "fp32"),
    "OpenVINO int8, rest bf16": ("int8.xml", {"to": "openvino", "int8": True}, "bf16"),
}


@dataclass(frozen=True)
class Contender:
    """What takes turns.

    Args:
        answer: returns the best class of every file.
        compute: the network alone; None where it is that of another contender.
        facts: what was chosen, and what that took.
    """

    answer: Callable[[], list[int]]
    compute: Compute | None
    facts: Mapping[str, Any]


def wait_for_readers() -> None:
    """Waits until no thread reads files any more: what one reads ahead belongs to the step that started it."""
    before = -1.0
    while time.process_time() - before > 1e-3:
        before = time.process_time()
        time.sleep(0.02)


def run_job(model: Path, files: list[str], *, alone: bool = True, **how: Any) -> Contender:
    """A job of `vitrail.predict`, of which a step takes the answers for ``files``."""
    times = JOB // len(files) | 1  # an odd number, so that images spread evenly over the job are different ones
    lines: list[str] = []
    started = time.process_time()
    results = vitrail.predict(model, files * times, batch=len(files), quiet=True, log=lines.append, **how)
    took = time.process_time() - started
    chosen = "bf16" if results.comparison is not None else "fp32"

    def answer() -> list[int]:
        labels = [results.task.classes.index(each.label) for each in islice(results, len(files))]
        wait_for_readers()
        return labels

    said = "; ".join(line for line in lines if line.startswith(SETTLED))
    facts = {"prepared_seconds": round(took, 2), **({"settled": said} if said else {})}
    return Contender(answer, prepare_compute(model, how.get("precision", chosen), len(files)) if alone else None, facts)


def prepare_compute(model: Path, precision: str, batch: int) -> Compute:
    """The network as `vitrail.predict` calls it, in the plan that was measured for the job."""
    options = InferenceOptions(precision=precision, tune=True, batch=batch)
    task = options.load(model, log_nothing)
    return partial(tune_options(options, task, log_nothing).compute, task)


def run_export(model: Path, files: list[str], data: Path, folder: Path, name: str) -> Contender:
    file, how, precision = EXPORTS[name]
    if not (folder / file).exists():
        vitrail.export(model, folder / file, check=data, images=64, tolerance=0.5, quiet=True, log=log_nothing, **how)
    return run_job(folder / file, files, precision=precision)


def run_torch(model: nn.Module, files: list[str], *, precision: str = "fp32", compiled: bool = False) -> Contender:
    """timm's transform and network; bf16 by autocast or in the weights, as is faster before it is compiled."""
    transform = timm.data.create_transform(**timm.data.resolve_data_config({}, model=model))
    ways: dict[str, Compute] = {"": model}
    if precision == "bf16":
        cast = timm.create_model(model.pretrained_cfg["architecture"]).eval()
        cast.load_state_dict(model.state_dict())
        ways = {"autocast": model, "cast": cast.bfloat16()}

    def compute(way: str, images: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16, enabled=way == "autocast"):
            return ways[way](images.bfloat16() if way == "cast" else images).float()

    images = _read(transform, files)
    for way in ways:
        compute(way, images)
    seconds = {way: harness.seconds_for(partial(compute, way, images), 3, "cpu", time.process_time) for way in ways}
    best = min(seconds, key=lambda way: seconds[way])
    if compiled:
        ways[best] = torch.compile(ways[best])
    return _answering(partial(compute, best), transform, files, {"way": best} if best else {})


def run_openvino(model: nn.Module, files: list[str], **hint: str) -> Contender:
    """timm's transform, and its network as OpenVINO converts it."""
    openvino = import_openvino()
    transform = timm.data.create_transform(**timm.data.resolve_data_config({}, model=model))
    images = _read(transform, files)
    graph = openvino.convert_model(model, example_input=images[:1], input=[tuple(images.shape)])
    threads = {"INFERENCE_NUM_THREADS": torch.get_num_threads(), "NUM_STREAMS": 1, "ENABLE_CPU_PINNING": False}
    compiled = openvino.Core().compile_model(graph, "CPU", {**threads, **hint})
    facts = {"precision": compiled.get_property("INFERENCE_PRECISION_HINT").to_string()}
    facts["version"] = openvino.__version__
    return _answering(lambda batch: torch.from_numpy(compiled(batch.numpy())[0]), transform, files, facts)


def run_pipeline(folder: Path, files: list[str], dtype: torch.dtype) -> Contender:
    """The pipeline of transformers, and its network alone."""
    pipe = transformers.pipeline("image-classification", model=str(folder), device="cpu", dtype=dtype)
    numbers = pipe.model.config.label2id

    def answer() -> list[int]:
        return [numbers[best[0]["label"]] for best in pipe(files, batch_size=len(files))]

    return Contender(answer, lambda images: pipe.model(images.to(dtype)).logits.float(), {})


def _read(transform: Callable[[Any], Tensor], files: list[str]) -> Tensor:
    return torch.stack([transform(Image.open(file).convert("RGB")) for file in files])


def _answering(compute: Compute, transform: Any, files: list[str], facts: Mapping[str, Any]) -> Contender:
    def answer() -> list[int]:
        return compute(_read(transform, files)).softmax(-1).topk(5).indices[:, 0].tolist()

    return Contender(answer, compute, facts)


@torch.no_grad()
def make_model(name: str, weights: Path | None, files: list[str]) -> nn.Module:
    """timm's network with ``weights``; by default random ones and a head of a class for each file."""
    torch.manual_seed(0)
    model = timm.create_model(TIMM[name]).eval()
    if weights is not None:
        model.load_state_dict(safetensors.torch.load_file(weights))
        return model
    for key, parameter in model.named_parameters():
        parameter += 0.05 * torch.randn_like(parameter)
        parameter *= BRANCH if "norm3" in key else 1
    images = _read(timm.data.create_transform(**timm.data.resolve_data_config({}, model=model)), files)
    features = model.forward_head(model.forward_features(images), pre_logits=True).flatten(1)  # (B, D)
    apart = features - features.mean(0)
    rows = MARGIN * apart / apart.square().sum(1, keepdim=True)  # (B, D)
    head = model.get_classifier()
    for parameter in head.parameters():
        parameter.zero_()
    head.weight.flatten(1)[: len(files)] = rows
    head.bias[: len(files)] = -rows @ features.mean(0)
    return model


def make_contenders(model: nn.Module, files: list[str], data: Path, folder: Path) -> dict[str, Contender]:
    """All contenders that can be made; of the others the reason is printed."""
    timms, theirs = folder / "timm", folder / "transformers"
    timm.models.save_for_hf(model, timms, safe_serialization=True)

    def run_converted(dtype: torch.dtype) -> Contender:
        if not theirs.exists():
            vitrail.convert(timms, theirs, to="huggingface", force=True, log=log_nothing)
        return run_pipeline(theirs, files, dtype)

    makers: dict[str, Callable[[], Contender]] = {
        "vitrail, fp32": partial(run_job, timms, files, precision="fp32"),
        "vitrail, default": partial(run_job, timms, files),
        "vitrail, --fast": partial(run_job, timms, files, fast=True, alone=False),
        **{f"vitrail, {name}": partial(run_export, timms, files, data, folder, name) for name in EXPORTS},
        "timm, fp32": partial(run_torch, model, files),
        "timm, bf16": partial(run_torch, model, files, precision="bf16"),
        "timm, fp32, compiled": partial(run_torch, model, files, compiled=True),
        "timm, bf16, compiled": partial(run_torch, model, files, precision="bf16", compiled=True),
        "transformers, fp32": partial(run_converted, torch.float32),
        "transformers, bf16": partial(run_converted, torch.bfloat16),
        "openvino, default": partial(run_openvino, model, files),
        "openvino, fp32": partial(run_openvino, model, files, INFERENCE_PRECISION_HINT="f32"),
    }
    made = {}
    for name, make in makers.items():
        try:
            made[name] = make()
        except VitrailError as error:
            print(f"{name} is left out: {error.what}", flush=True)
        else:
            print(f"made {name} {dict(made[name].facts) or ''}", flush=True)
    return made


@torch.inference_mode()
def measure(name: str, files: list[str], asked: argparse.Namespace) -> None:
    with tempfile.TemporaryDirectory() as folder:
        model = make_model(name, asked.weights, files)
        contenders = make_contenders(model, files, asked.data, Path(folder))
        expected = contenders["vitrail, fp32"].answer()
        same = {
            each: sum(map(int.__eq__, contender.answer(), expected)) / len(files)
            for each, contender in contenders.items()
        }
        print("same answers as vitrail, fp32: " + ", ".join(f"{each} {share:.3g}" for each, share in same.items()))
        assert same["timm, fp32"] >= SAME, same
        images = _read(timm.data.create_transform(**timm.data.resolve_data_config({}, model=model)), files)
        networks = {each: partial(made.compute, images) for each, made in contenders.items() if made.compute}
        steps = {"predict": {each: made.answer for each, made in contenders.items()}, "model": networks}
        notes = {"batch": len(files), "image": 224, "weights": "those of timm" if asked.weights else "random"}
        notes |= {each.__name__: each.__version__ for each in (timm, transformers)}
        notes |= {"same_answers": same, "chosen": {each: dict(made.facts) for each, made in contenders.items()}}
        for mode in asked.modes:
            how = {"images": len(files), "blocks": asked.blocks, "block_seconds": asked.seconds}
            timings = harness.take_turns(steps[mode], clock=time.process_time, **how)
            harness.report(f"predicting-{mode}-{name}", timings, device="cpu", notes=notes, clock=time.process_time)


def main() -> None:
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("data", type=Path, help="a folder of JPEG files")
    words.add_argument(
        "--models", nargs="+", default=["vit-ti16", "vit-s16", "swin-t", "bit-r50x1"], choices=list(TIMM)
    )
    words.add_argument("--weights", type=Path, help="a file of timm's; by default random ones")
    words.add_argument("--images", type=int, default=32, help="files of a step")
    words.add_argument("--blocks", type=int, default=7)
    words.add_argument("--seconds", type=float, default=2.0, help="of a block")
    words.add_argument("--modes", nargs="+", default=["predict", "model"], choices=["predict", "model"])
    asked = words.parse_args()
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    files = [str(path) for path in sorted(asked.data.iterdir()) if path.suffix.lower() in (".jpg", ".jpeg")]
    for name in asked.models:
        measure(name, files[: asked.images], asked)


if __name__ == "__main__":
    main()
