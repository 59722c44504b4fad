"""Training step and inference of a network against timm, Hugging Face, torchvision and vit-pytorch, each at its best: same work,
one process, in turns.

Training is forward, cross-entropy, backward and a fused AdamW update; inference is forward. Each library has every setting that
it offers here: fp32, or bf16 by autocast in training and in the weights in inference; plain or fused attention; with --compile
compiled too; convolutional networks channels-last too. Every setting is tried; those that take half as long again as the best
of their library are recorded and left out of the turns. In inference vitrail's ONNX graph and its int8 form run beside. GELU is
the exact one, as in all peers. Before anything is timed, vitrail and timm give equal logits from the same weights.

The bound is the network's multiply-adds as products of square matrices in fp32, three times in training: what the processor
would do if a network were nothing but large products. ``--profile`` prints where the time of a step goes instead.

    make bench BENCH=step        or, by hand:        python benchmarks/step.py --models vit-ti16 --threads 1 --compile
"""

from __future__ import annotations

import argparse
import copy
import gc
import math
import re
import tempfile
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import harness
import timm
import timm.layers
import torch
import torch.nn.functional as F
import torchvision
import transformers
from torch import Tensor, nn

from vitrail.exports.graph import to_onnx
from vitrail.exports.quantise import to_int8
from vitrail.models import configure, cost_of, create_backbone
from vitrail.runtime.process import keep_large_buffers
from vitrail.tasks.classification.classifier import create_classifier
from vitrail.weights.timm import read_timm

Step = Callable[[], object]
Builders = Mapping[str, Callable[[], nn.Module]]
VITS = {  # width, heads, depth
    "vit-ti16": (192, 3, 12),
    "vit-s16": (384, 6, 12),
    "vit-b16": (768, 12, 12),
    "vit-l16": (1024, 16, 24),
}
TIMM = {
    "vit-ti16": "vit_tiny_patch16_224",
    "vit-s16": "vit_small_patch16_224",
    "vit-b16": "vit_base_patch16_224",
    "vit-l16": "vit_large_patch16_224",
    "swin-t": "swin_tiny_patch4_window7_224",
    "pvt-v2-b1": "pvt_v2_b1",
    "bit-r50x1": "resnetv2_50x1_bit",
    "dinov3-s16": "vit_small_patch16_dinov3_qkvb",
    "eva02-ti14": "eva02_tiny_patch14_224",
}
FOUNDATIONS = ("dinov3-s16", "eva02-ti14")
HOPELESS = 1.5  # of the time of a library's best setting, above which a setting takes no turns
SIDE = 1024  # rows of the matrices of the bound
BOUND = "bound: products alone"


class HuggingFace(nn.Module):
    """Its classifier, answering with logits."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: Tensor) -> Tensor:
        return self.model(images).logits


def ours(name: str) -> nn.Module:
    exact: dict[str, object] = {"gelu": "exact"} if name in VITS else {}
    exact |= {"standardise": "timm"} if name.startswith("bit") else {}
    exact |= {"image_size": 224, "pool": "gap"} if name in FOUNDATIONS else {}  # as timm pools them
    return create_backbone(name, **exact)


def of_timm(name: str, *, fused: bool = True) -> nn.Module:
    timm.layers.set_fused_attn(fused)  # read when the model is made
    sized = {"img_size": 224, "num_classes": 1000} if name in FOUNDATIONS else {}
    return timm.create_model(TIMM[name], **sized)


class DINOv3(nn.Module):
    """The backbone of transformers, which has no classifier, with a linear layer on the mean of its patches."""

    def __init__(self, *, attention: str) -> None:
        super().__init__()
        config = transformers.DINOv3ViTConfig(
            num_register_tokens=4, layerscale_value=1e-5, attn_implementation=attention
        )
        self.model, self.head = transformers.DINOv3ViTModel(config), nn.Linear(config.hidden_size, 1000)

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.model(images).last_hidden_state[:, 5:].mean(1))


def of_huggingface(name: str, *, attention: str) -> nn.Module:
    width, heads, depth = VITS[name]
    config = transformers.ViTConfig(
        hidden_size=width,
        num_hidden_layers=depth,
        num_attention_heads=heads,
        intermediate_size=4 * width,
        num_labels=1000,
        attn_implementation=attention,
    )
    return HuggingFace(transformers.ViTForImageClassification(config))


def of_torchvision(name: str) -> nn.Module:
    width, heads, depth = VITS[name]
    return torchvision.models.VisionTransformer(224, 16, depth, heads, width, 4 * width)


def of_vit_pytorch(name: str) -> nn.Module:
    import vit_pytorch

    width, heads, depth = VITS[name]
    how = {"dim": width, "depth": depth, "heads": heads, "dim_head": width // heads, "mlp_dim": 4 * width}
    return vit_pytorch.ViT(image_size=224, patch_size=16, num_classes=1000, **how)


def builders(name: str) -> Builders:
    """The network of each library, by the library and its setting."""
    attention: Builders = {
        "vitrail": partial(ours, name),
        "timm, fused attention": partial(of_timm, name, fused=True),
        "timm, plain attention": partial(of_timm, name, fused=False),
    }
    if name in VITS:
        return attention | {
            "hugging face, fused attention": partial(of_huggingface, name, attention="sdpa"),
            "hugging face, plain attention": partial(of_huggingface, name, attention="eager"),
            "torchvision": partial(of_torchvision, name),
            "vit-pytorch": partial(of_vit_pytorch, name),
        }
    if name == "dinov3-s16":
        return attention | {
            "hugging face, fused attention": partial(DINOv3, attention="sdpa"),
            "hugging face, plain attention": partial(DINOv3, attention="eager"),
        }
    if name == "swin-t":
        config = transformers.SwinConfig(num_labels=1000)
        return attention | {
            "hugging face": lambda: HuggingFace(transformers.SwinForImageClassification(config)),
            "torchvision": torchvision.models.swin_t,
        }
    if name.startswith("bit"):
        config = transformers.BitConfig(num_labels=1000, layer_type="preactivation", global_padding="same")
        networks: Builders = {
            "vitrail": partial(ours, name),
            "timm": partial(of_timm, name),
            "hugging face": lambda: HuggingFace(transformers.BitForImageClassification(config)),
        }
        return networks | {f"{each}, channels-last": partial(_channels_last, build) for each, build in networks.items()}
    return attention


def _channels_last(build: Callable[[], nn.Module]) -> nn.Module:
    return build().to(memory_format=torch.channels_last)


def training(
    model: nn.Module, images: Tensor, targets: Tensor, *, precision: str = "bf16", compiled: bool = False
) -> Step:
    model.train().to(images.device)
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.05, fused=True)
    forward = torch.compile(model) if compiled else model

    def step() -> None:
        optimiser.zero_grad(set_to_none=True)
        with torch.autocast(images.device.type, torch.bfloat16, enabled=precision == "bf16"):
            loss = F.cross_entropy(forward(images), targets)
        loss.backward()
        optimiser.step()

    return step


def inference(model: nn.Module, images: Tensor, *, precision: str = "bf16", compiled: bool = False) -> Step:
    weights = torch.bfloat16 if precision == "bf16" else torch.float32
    model.eval().to(images.device, weights)
    images = images.to(weights)
    forward = torch.compile(model) if compiled else model

    def step() -> Tensor:
        with torch.inference_mode():
            return forward(images)

    return step


def exported(name: str, images: Tensor, folder: Path) -> dict[str, Step]:
    """vitrail's ONNX graph of this batch, and its int8 form where the network has layers for it, run by onnxruntime."""
    import onnxruntime

    graph = folder / "model.onnx"
    sized = {"image_size": 224} if name in FOUNDATIONS else {}
    to_onnx(create_classifier(configure(name, **sized), classes=1000).eval(), graph)
    files = {"onnx fp32": graph}
    if not name.startswith("bit"):
        to_int8(graph, folder / "int8.onnx")
        files["onnx int8"] = folder / "int8.onnx"
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    steps: dict[str, Step] = {}
    for word, path in files.items():
        session = onnxruntime.InferenceSession(path, options, ["CPUExecutionProvider"])
        steps[f"vitrail, {word}"] = partial(session.run, None, {"images": images.numpy()})
    return steps


def bound(name: str, batch: int, times: int, device: str) -> Step:
    """The multiply-adds of a batch as products of square matrices in fp32."""
    products = round(times * batch * cost_of(configure(name)).multiply_adds / SIDE**3)
    one, other = (torch.randn(SIDE, SIDE, device=device) for _ in range(2))

    def step() -> None:
        for _ in range(products):
            torch.mm(one, other)

    return step


def check_equal(name: str) -> float:
    """Asserts that vitrail and timm agree on random weights, and gives their largest difference in fp32."""
    torch.manual_seed(0)
    peer, own = of_timm(name).eval(), ours(name).eval()
    with torch.no_grad():
        for parameter in peer.parameters():
            parameter += 0.05 * torch.randn_like(parameter)
    if name in FOUNDATIONS:
        described = {"architecture": TIMM[name], "global_pool": "avg", "model_args": {"img_size": 224}}
        own.load_state_dict(read_timm(peer.state_dict(), described, Path(name)).tensors)
        return _compare(own, peer)
    renamed = {
        re.sub(r"^layers\.", "stages.", key).replace("head.fc.", "head."): each
        for key, each in peer.state_dict().items()
    }
    known = own.state_dict()
    own.load_state_dict({key: each.reshape(known[key].shape) for key, each in renamed.items()})
    return _compare(own, peer)


def _compare(own: nn.Module, peer: nn.Module) -> float:
    images = torch.randn(2, 3, 224, 224)
    with torch.inference_mode():
        expected, given = peer(images), own(images)
    difference = (expected - given).abs().max().item()
    assert difference < 1e-4 * expected.abs().max().item(), difference
    return difference


def leave_hopeless(steps: dict[str, Step], device: str) -> tuple[dict[str, Step], dict[str, float]]:
    """The settings that take turns, and the seconds of a step of every one of them, tried once."""
    tried: dict[str, float] = {}
    best: dict[str, float] = {}
    for name, step in steps.items():
        library = _library(name)
        tried[name] = harness.seconds_for(step, 1, device)
        if "compiled" in name or tried[name] < 4 * best.get(library, math.inf):  # the first step compiles and allocates
            tried[name] = harness.seconds_for(step, 1, device)
        best[library] = min(best.get(library, math.inf), tried[name])
    kept = {name: step for name, step in steps.items() if tried[name] <= HOPELESS * best[_library(name)]}
    return kept, {name: round(seconds, 4) for name, seconds in tried.items()}


def _library(name: str) -> str:
    return name if name.startswith("vitrail, onnx") else name.split(",")[0]


TIMES = {"training": 3, "inference": 1}  # the multiply-adds of a forward pass


def measure(
    name: str, *, batch: int, device: str, compiled: bool, blocks: int, precisions: list[str], modes: list[str]
) -> None:
    notes: dict[str, object] = {"batch": batch, "image": 224, "largest_difference_to_timm": check_equal(name)}
    notes |= {each.__name__: each.__version__ for each in (timm, transformers, torchvision)}
    torch.manual_seed(0)
    images, targets = torch.randn(batch, 3, 224, 224, device=device), torch.randint(1000, (batch,), device=device)
    ways = [(precision, flag) for precision in precisions for flag in ([False, True] if compiled else [False])]
    for mode in modes:
        make = partial(training, targets=targets) if mode == "training" else inference
        steps = {
            f"{library}, {precision}{', compiled' * flag}": make(
                build(), images=_as(library, images), precision=precision, compiled=flag
            )
            for library, build in builders(name).items()
            for precision, flag in ways
        }
        with tempfile.TemporaryDirectory() as folder:
            if mode == "inference" and device == "cpu":
                steps |= exported(name, images, Path(folder))
            kept, tried = leave_hopeless(steps, device)
            kept[BOUND] = bound(name, batch, TIMES[mode], device)
            timings = harness.take_turns(kept, images=batch, device=device, blocks=blocks, block_seconds=1.0)
        facts = {**notes, "compiled": compiled, "tried_seconds": tried}
        harness.report(f"{name}-{mode}-{device}", timings, device=device, notes=facts)
        del steps, kept
        gc.collect()


def _as(library: str, images: Tensor) -> Tensor:
    return images.to(memory_format=torch.channels_last) if "channels-last" in library else images


def profile(name: str, *, batch: int, device: str) -> None:
    """Prints the operations that take the time of a training step and of inference, in fp32."""
    images, targets = torch.randn(batch, 3, 224, 224, device=device), torch.randint(1000, (batch,), device=device)
    model = ours(name)
    steps = {
        "training": training(copy.deepcopy(model), images, targets, precision="fp32"),
        "inference": inference(model, images, precision="fp32"),
    }
    for mode, step in steps.items():
        step()
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as found:
            step()
        print(f"{name}, {mode}, {batch} images\n{found.key_averages().table('self_cpu_time_total', row_limit=16)}")


def main() -> None:
    available = "cuda" if torch.cuda.is_available() else "cpu"
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument(
        "--models", nargs="+", default=["vit-ti16", "vit-s16", "swin-t", "bit-r50x1"], choices=list(TIMM)
    )
    arguments.add_argument("--device", default=available)
    arguments.add_argument("--batch", type=int, help="16 on a CPU, else 256")
    arguments.add_argument("--blocks", type=int, default=7)
    arguments.add_argument("--threads", type=int, default=torch.get_num_threads())
    arguments.add_argument("--precisions", nargs="+", default=["fp32", "bf16"], choices=["fp32", "bf16"])
    arguments.add_argument("--modes", nargs="+", default=list(TIMES), choices=list(TIMES))
    arguments.add_argument("--compile", action="store_true", default=available == "cuda", help="compiled as well")
    arguments.add_argument(
        "--profile", action="store_true", help="where the time of a step goes, in place of the table"
    )
    given = arguments.parse_args()
    torch.set_num_threads(given.threads)
    keep_large_buffers()
    batch = given.batch or (16 if given.device == "cpu" else 256)
    for name in given.models:
        if given.profile:
            profile(name, batch=batch, device=given.device)
            continue
        how = {"compiled": given.compile, "blocks": given.blocks, "precisions": given.precisions}
        how |= {"modes": given.modes}
        measure(name, batch=batch, device=given.device, **how)


if __name__ == "__main__":
    main()
