"""Describes the machine: for `vitrail doctor`, the report and the records of benchmarks."""

from __future__ import annotations

import importlib.metadata
import platform
import re
import shutil
import sys
from contextlib import suppress
from pathlib import Path

import torch

from vitrail.runtime.device import find_device
from vitrail.runtime.process import cores

try:
    import resource
except ImportError:  # Windows has none
    resource = None  # type: ignore[assignment]

REQUIRED = re.compile(r"(?P<package>[\w.-]+).*extra == ['\"](?P<extra>\w+)['\"]")
PACKAGES = (
    "vitrail", "torch", "numpy", "pillow", "safetensors", "scikit-learn", "matplotlib", "pyarrow", "tensorboardX"
)  # fmt: skip

EXTRAS = {  # optional packages of vitrail, and what needs them
    "data": "Parquet: data sets, and tables of results",
    "figure": "pictures of attention as matplotlib draws them",
    "onnx": "export to ONNX and int8, and models exported so",
    "openvino": "export to OpenVINO, also in int8, and models exported so",
    "ray": "bulk inference on a Ray cluster",
    "remote": "data and results at s3://",
    "serve": "the HTTP server and its page",
    "tiff": "TIFF of 16 bits, floats or many bands",
    "track": "TensorBoard; the other trackers are packages of their own",
}


def peak_memory() -> int:
    """Returns peak memory of this process in bytes; 0 if the system does not report it."""
    if resource is None:
        return 0
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def available_memory() -> int | None:
    """Returns the bytes that can be allocated without swapping, within the limit of the control group; None if unknown."""
    table = Path("/proc/meminfo")
    if not table.exists():
        return None
    lines = dict(line.split(":") for line in table.read_text().splitlines())
    available = int(lines["MemAvailable"].split()[0]) * 1024
    group = Path("/sys/fs/cgroup")
    try:
        limit, used = ((group / name).read_text().strip() for name in ("memory.max", "memory.current"))
    except OSError:
        return available
    return available if limit == "max" else min(available, max(int(limit) - int(used), 0))


def versions() -> dict[str, str]:
    """Returns the version of each package that counts, ``absent`` where it is not installed."""
    return {"python": platform.python_version(), **{name: find_version(name) or "absent" for name in PACKAGES}}


def find_version(package: str) -> str | None:
    """Returns the version of a package; None if it is not installed."""
    with suppress(importlib.metadata.PackageNotFoundError):
        return importlib.metadata.version(package)
    return None


def list_extras() -> dict[str, str]:
    """Returns for each extra of vitrail whether its packages are installed, or how to install them, and what needs them."""
    packages: dict[str, list[str]] = {}
    for requirement in importlib.metadata.requires("vitrail") or ():
        if match := REQUIRED.match(requirement):
            packages.setdefault(match["extra"], []).append(match["package"])
    rows = {}
    for extra, purpose in EXTRAS.items():
        missing = [name for name in packages.get(extra, ()) if find_version(name) is None]
        rows[extra] = f"pip install 'vitrail[{extra}]': {purpose}" if missing else f"installed: {purpose}"
    return rows


def processor() -> str:
    """Returns the name of the processor."""
    table = Path("/proc/cpuinfo")
    model = re.search(r"^model name\s*:(.*)", table.read_text(), re.MULTILINE) if table.exists() else None
    return model[1].strip() if model else platform.processor() or platform.machine()


def accelerator() -> str:
    """Returns the name of the GPU, or the empty string."""
    if torch.cuda.is_available():
        return torch.cuda.get_device_name(0)
    return "Apple GPU (mps)" if torch.backends.mps.is_available() else ""


def describe() -> str:
    """Returns the machine in one line."""
    gpu = accelerator()
    return f"{gpu + ', ' if gpu else ''}{processor()}, {cores()} cores, torch {torch.__version__}"


def examine() -> dict[str, object]:
    """Returns all of these facts, and the result of `self_check`."""
    build = f"CUDA {torch.version.cuda}" if torch.version.cuda else "ROCm" if torch.version.hip else "CPU only"
    return {
        **versions(),
        "torch build": build,
        "processor": processor(),
        "cores": cores(),
        "bf16": "native" if torch.cpu.get_capabilities().get("avx512_bf16") else "emulated",
        "gpu": accelerator() or "none",
        **{f"extra {name}": state for name, state in list_extras().items()},
        "free disk": f"{shutil.disk_usage('.').free / 2**30:.1f} GiB",
        "self-check": self_check(),
    }


def self_check() -> str:
    """Compares the gradient of a small network on this device with fp64 on the CPU: ``passed``, or the difference."""
    device = find_device(None).type
    generator = torch.Generator().manual_seed(0)
    images, weight = torch.randn(8, 32, generator=generator), torch.randn(32, 32, generator=generator)

    def gradient(device: str, dtype: torch.dtype) -> torch.Tensor:
        leaf = weight.to(device, dtype).requires_grad_()
        torch.nn.functional.gelu(images.to(device, dtype) @ leaf).softmax(-1).square().sum().backward()
        assert leaf.grad is not None
        return leaf.grad.cpu().double()

    exact = gradient("cpu", torch.float64)
    difference = float((gradient(device, torch.float32) - exact).abs().max() / exact.abs().max())
    return "passed" if difference < 1e-4 else f"failed: relative difference {difference:.2g} on {device}"
