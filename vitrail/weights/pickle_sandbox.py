"""The program that opens pickled checkpoints, in a process of its own that `vitrail.weights.pickled` starts.

A pickle can ask for any function to be called. So this process holds nothing worth taking: it has no secrets in its
environment, little memory, time and disk, and may start no program, open no connection and write to one folder. There it
puts the tensors as safetensors, and in ``answer.json`` what it took, or why it took nothing. Its reader believes neither.

Nothing of vitrail is imported here: told what to do in one argument of JSON, it needs torch and safetensors alone.
"""

from __future__ import annotations

import json
import math
import os
import pickle
import re
import sys
import zipfile
from argparse import Namespace
from contextlib import suppress
from pathlib import Path
from typing import Any

# where training programs keep a state dict; averaged weights first, which are those that are published (as timm does)
WRAPPERS = (
    "state_dict_ema",
    "model_ema",
    "state_dict",
    "model",
    "model_state_dict",
    "module",
    "net",
    "teacher",
    "student",
)
PREFIXES = ("module.", "_orig_mod.", "model.", "net.", "backbone.")  # of what was wrapped around the model
COUNTER = "n_averaged"  # of torch.optim.swa_utils.AveragedModel, beside "module."
DEEPEST = 3  # wrappers in wrappers
MOST_SWOLLEN = 2  # times that the tensors may be larger than the file: a few share their memory
FORBIDDEN = (
    *("os.exec", "os.fork", "os.posix_spawn", "os.spawn", "os.startfile", "os.system", "pty.", "subprocess."),
    *("socket.", "urllib.", "ctypes."),
    *("os.chmod", "os.chown", "os.link", "os.remove", "os.rename", "os.rmdir", "os.symlink", "os.truncate", "shutil."),
)


class Refusal(Exception):
    """Why there are no tensors, and what to do about it."""

    def __init__(self, what: str, remedy: str = "it is damaged or was not copied whole; fetch it again") -> None:
        super().__init__(what, remedy)
        self.what, self.remedy = what, remedy


def rewrite(source: Path, folder: Path, *, most_tensors: int, spare_bytes: int) -> str:
    """Puts the tensors of ``source`` into ``folder`` as ``model.safetensors``.

    Args:
        spare_bytes: the memory beyond what torch itself and the tensors of a file of that size take.

    Returns:
        In words: how many there are, which state dict was taken, what was left, the prefix that was taken off the names.

    Raises:
        Refusal: it wants more than tensors, is damaged, or holds no state dict of plain tensors.
    """
    import torch
    from safetensors.torch import save_file

    size = source.stat().st_size
    limit_memory(3 * MOST_SWOLLEN * size + spare_bytes)  # what is loaded, its copy, and the bytes that are written
    sys.addaudithook(lambda event, arguments: forbid(event, arguments, folder))
    check_zip(source, size)
    torch.serialization.add_safe_globals([Namespace])  # the arguments of many a training program; holds what it is told
    loaded = torch.load(source, weights_only=True, map_location="cpu")
    found = search(loaded)
    way, held = found or ((), {})
    names = [name for name, value in held.items() if isinstance(name, str) and isinstance(value, torch.Tensor)]
    if any(name.startswith("module.") for name in names):
        names = [name for name in names if name != COUNTER]
    if not names:
        raise Refusal(f"holds no tensors by name but {described(loaded)}", "give a checkpoint that has a state dict")
    if len(names) > most_tensors:
        raise Refusal(f"holds {len(names):,} tensors", f"up to {most_tensors:,} are read")
    prefix = shared_prefix(names)
    tensors = {name.removeprefix(prefix): held[name] for name in names}
    check_size(tensors, size)
    save_file({name: plain(tensor, name) for name, tensor in tensors.items()}, folder / "model.safetensors")
    beside = [name for name in WRAPPERS if way and isinstance(loaded.get(name), dict) and name != way[0]]
    return ", ".join(
        [
            f"{len(names)} tensors" + (f" of {'.'.join(way)!r}" if way else ""),
            *([f"not those of {', '.join(map(repr, beside))}"] if beside else []),
            *([f"without the prefix {prefix!r}"] if prefix else []),
            *([f"{len(held) - len(names)} other entries dropped"] if len(held) > len(names) else []),
        ]
    )


def search(value: Any, way: tuple[str, ...] = ()) -> tuple[tuple[str, ...], dict[Any, Any]] | None:
    """The first dict with tensors in it, wrapped ones before those around them, and the keys that lead to it."""
    import torch

    if not isinstance(value, dict) or len(way) > DEEPEST:
        return None
    for name in WRAPPERS:
        if (found := search(value.get(name), (*way, name))) is not None:
            return found
    return (way, value) if any(isinstance(each, torch.Tensor) for each in value.values()) else None


def shared_prefix(names: list[str]) -> str:
    """What every name begins with of `PREFIXES`, one after the other."""
    prefix = ""
    while added := next((each for each in PREFIXES if all(name.startswith(prefix + each) for name in names)), ""):
        prefix += added
    return prefix


def check_size(tensors: dict[str, Any], size: int) -> None:
    """Refuses views that stand for far more numbers than the file has."""
    total = sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())
    if total > MOST_SWOLLEN * size:
        largest = max(tensors, key=lambda name: tensors[name].numel())
        what = f"has {size:,} bytes; its tensors, such as {largest[:80]!r}, would take {total:,}"
        raise Refusal(what, "no weights swell so; fetch the file from a source you trust")


def plain(tensor: Any, name: str) -> Any:
    """The tensor with memory of its own, in order. Raises `Refusal` for those that safetensors has no form for."""
    import torch

    kinds = {
        "sparse or nested": tensor.layout is not torch.strided or tensor.is_nested,
        "quantised": tensor.is_quantized,
        "complex": tensor.is_complex(),
        "empty (on the meta device)": tensor.device.type != "cpu",
    }
    if kind := next((kind for kind, true in kinds.items() if true), ""):
        raise Refusal(
            f"holds the {kind} tensor {name[:80]!r}", "save it as plain numbers: tensor.to_dense() or .float()"
        )
    return tensor.detach().resolve_neg().clone(memory_format=torch.contiguous_format)


def check_zip(source: Path, size: int) -> None:
    """Refuses an archive that swells: torch's are not compressed."""
    if not zipfile.is_zipfile(source):
        return
    with zipfile.ZipFile(source) as archive:
        swollen = sum(member.file_size for member in archive.infolist())
    if swollen > MOST_SWOLLEN * size:
        remedy = "no weights compress so well; fetch the file from a source you trust"
        raise Refusal(f"has {size:,} bytes and swells to {swollen:,}", remedy)


def forbid(event: str, arguments: tuple[Any, ...], folder: Path) -> None:
    """Lets nothing leave this process but files in ``folder``, should torch itself be led astray."""
    writes = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
    opened = event == "open" and isinstance(arguments[2], int) and arguments[2] & writes
    if event.startswith(FORBIDDEN) or (opened and Path(os.fsdecode(arguments[0])).parent != folder):
        raise PermissionError(f"{event} is forbidden here")


def limit(kind: str, most: int) -> None:
    """Sets one limit of this process for good, where the system has it."""
    with suppress(ImportError, AttributeError, ValueError, OSError):
        import resource

        _, hard = resource.getrlimit(getattr(resource, kind))
        most = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(getattr(resource, kind), (most, most))


def limit_memory(spare_bytes: int) -> None:
    """Lets this process grow by so much; only Linux says what it has taken, and only there the limit holds."""
    with suppress(OSError, AttributeError):
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        limit("RLIMIT_AS", pages * os.sysconf("SC_PAGE_SIZE") + spare_bytes)


def reason(error: Exception) -> Refusal:
    """What an error means for the file."""
    text = str(error).strip()
    if isinstance(error, Refusal):
        return error
    if wanted := re.search(r"GLOBAL (\S+)", text):
        remedy = "where you trust its source, save its state_dict() as .safetensors there; else leave it alone"
        return Refusal(f"wants {wanted[1][:100]!r} called when it is opened, and only tensors are read", remedy)
    if isinstance(error, MemoryError) or "can't allocate memory" in text:
        return Refusal("takes more memory than a file of its size can need", "fetch it from a source you trust")
    if isinstance(error, pickle.UnpicklingError):  # torch's advice to trust the file comes before the reason
        text = text.partition("WeightsUnpickler error:")[2].strip() or text
    return Refusal(f"is no sound checkpoint: {text.partition(chr(10))[0][:200] or type(error).__name__}")


def described(value: Any) -> str:
    return f"a dict of {len(value):,} other things" if isinstance(value, dict) else f"one {type(value).__name__}"


def main() -> None:
    told = json.loads(sys.argv[1])
    sys.path[:] = told["sys_path"]
    folder = Path(told["folder"])
    limit("RLIMIT_CORE", 0)
    limit("RLIMIT_CPU", math.ceil(told["seconds"]))
    limit("RLIMIT_FSIZE", told["file_bytes"])
    try:
        source = Path(told["source"])
        took = rewrite(source, folder, most_tensors=told["most_tensors"], spare_bytes=told["spare_bytes"])
        answer = {"took": took}
    except Exception as error:  # torch raises a dozen kinds at what is no checkpoint
        refusal = reason(error)
        answer = {"what": refusal.what, "remedy": refusal.remedy}
    (folder / "answer.json").write_text(json.dumps(answer), encoding="utf-8")


if __name__ == "__main__":
    main()
