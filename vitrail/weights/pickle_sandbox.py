"""The program that opens pickled checkpoints, in a process of its own that `vitrail.weights.pickled` starts.

A pickle can ask for any function to be called; besides the weights-only unpickler of torch, the process is restricted: it
has no secrets in its environment, little memory, time and disk, may start no program and open no connection, and writes to
one folder: the tensors as safetensors, and in ``answer.json`` what it read or why it refused. Its parent trusts neither.

Nothing of vitrail is imported here: the program takes one argument of JSON, and needs torch and safetensors alone.
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
MAX_DEPTH = 3  # wrappers in wrappers
MAX_EXPANSION = 2  # times that the tensors may be larger than the file: a few share their memory
FORBIDDEN = (
    *("os.exec", "os.fork", "os.posix_spawn", "os.spawn", "os.startfile", "os.system", "pty.", "subprocess."),
    *("socket.", "urllib.", "ctypes."),
    *("os.chmod", "os.chown", "os.link", "os.remove", "os.rename", "os.rmdir", "os.symlink", "os.truncate", "shutil."),
)
DAMAGED = "it is damaged or was not copied whole; fetch it again"
DISTRUST = "fetch the file from a source you trust"


class Refusal(Exception):
    """Why there are no tensors, and what to do about it."""

    def __init__(self, what: str, remedy: str = DAMAGED) -> None:
        super().__init__(what, remedy)
        self.what, self.remedy = what, remedy


def rewrite(source: Path, folder: Path, *, max_tensors: int, spare_bytes: int) -> str:
    """Writes the tensors of ``source`` to ``folder`` as ``model.safetensors``.

    Args:
        spare_bytes: memory beyond what torch itself and the tensors of a file of that size take.

    Returns:
        In words: the number of tensors, the state dict that was chosen, what was left out, the prefix that was removed.

    Raises:
        Refusal: it needs more than tensors, is damaged, or holds no state dict of plain tensors.
    """
    import torch
    from safetensors.torch import save_file

    size = source.stat().st_size
    limit_memory(3 * MAX_EXPANSION * size + spare_bytes)  # what is loaded, its copy, and the bytes that are written
    sys.addaudithook(lambda event, arguments: forbid(event, arguments, folder))
    check_zip(source, size)
    torch.serialization.add_safe_globals([Namespace])  # the arguments of many training programs, plain values
    loaded = torch.load(source, weights_only=True, map_location="cpu")
    keys, state = find_state(loaded) or ((), {})
    names = [name for name, value in state.items() if isinstance(name, str) and isinstance(value, torch.Tensor)]
    if any(name.startswith("module.") for name in names):
        names = [name for name in names if name != COUNTER]
    if not names:
        other = (
            f"a dict of {len(loaded):,} other things" if isinstance(loaded, dict) else f"one {type(loaded).__name__}"
        )
        raise Refusal(f"holds no tensors by name but {other}", "give a checkpoint that has a state dict")
    if len(names) > max_tensors:
        raise Refusal(f"holds {len(names):,} tensors", f"up to {max_tensors:,} are read")
    prefix = shared_prefix(names)
    tensors = {name.removeprefix(prefix): state[name] for name in names}
    check_size(tensors, size)
    save_file({name: to_plain(tensor, name) for name, tensor in tensors.items()}, folder / "model.safetensors")
    unused = [repr(name) for name in WRAPPERS if keys and isinstance(loaded.get(name), dict) and name != keys[0]]
    words = [f"{len(names)} tensors" + (f" of {'.'.join(keys)!r}" if keys else "")]
    words += [f"not those of {', '.join(unused)}"] if unused else []
    words += [f"without the prefix {prefix!r}"] if prefix else []
    words += [f"{len(state) - len(names)} other entries dropped"] if len(state) > len(names) else []
    return ", ".join(words)


def find_state(value: Any, keys: tuple[str, ...] = ()) -> tuple[tuple[str, ...], dict[Any, Any]] | None:
    """The first dict that holds tensors, inner ones before outer ones, and the keys that lead to it."""
    import torch

    if not isinstance(value, dict) or len(keys) > MAX_DEPTH:
        return None
    for name in WRAPPERS:
        if (inner := find_state(value.get(name), (*keys, name))) is not None:
            return inner
    return (keys, value) if any(isinstance(item, torch.Tensor) for item in value.values()) else None


def shared_prefix(names: list[str]) -> str:
    """The `PREFIXES` that every name begins with, one after the other."""
    prefix = ""
    while added := next((part for part in PREFIXES if all(name.startswith(prefix + part) for name in names)), ""):
        prefix += added
    return prefix


def check_size(tensors: dict[str, Any], size: int) -> None:
    """Refuses views that stand for far more numbers than the file has."""
    total = sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())
    if total > MAX_EXPANSION * size:
        largest = max(tensors, key=lambda name: tensors[name].numel())
        raise Refusal(f"has {size:,} bytes; its tensors, such as {largest[:80]!r}, would take {total:,}", DISTRUST)


def check_zip(source: Path, size: int) -> None:
    """Refuses a compressed archive: torch's are not."""
    if not zipfile.is_zipfile(source):
        return
    with zipfile.ZipFile(source) as archive:
        total = sum(member.file_size for member in archive.infolist())
    if total > MAX_EXPANSION * size:
        raise Refusal(f"has {size:,} bytes and expands to {total:,}", DISTRUST)


def to_plain(tensor: Any, name: str) -> Any:
    """The tensor with contiguous memory of its own. Raises `Refusal` for those that safetensors cannot store."""
    import torch

    kinds = {
        "sparse or nested": tensor.layout is not torch.strided or tensor.is_nested,
        "quantised": tensor.is_quantized,
        "complex": tensor.is_complex(),
        "empty (on the meta device)": tensor.device.type != "cpu",
    }
    if kind := next((kind for kind, true in kinds.items() if true), ""):
        remedy = "save it as plain numbers: tensor.to_dense() or .float()"
        raise Refusal(f"holds the {kind} tensor {name[:80]!r}", remedy)
    return tensor.detach().resolve_neg().clone(memory_format=torch.contiguous_format)


def forbid(event: str, arguments: tuple[Any, ...], folder: Path) -> None:
    """Audit hook: allows no effect outside this process but files in ``folder``, should torch itself be exploited."""
    writes = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
    opened = event == "open" and isinstance(arguments[2], int) and arguments[2] & writes
    if event.startswith(FORBIDDEN) or (opened and Path(os.fsdecode(arguments[0])).parent != folder):
        raise PermissionError(f"{event} is forbidden here")


def limit(kind: str, most: int) -> None:
    """Sets one resource limit of this process, where the system has it."""
    with suppress(ImportError, AttributeError, ValueError, OSError):
        import resource

        _, hard = resource.getrlimit(getattr(resource, kind))
        most = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(getattr(resource, kind), (most, most))


def limit_memory(spare_bytes: int) -> None:
    """Lets this process grow by so much; only Linux reports its current size, and only there is memory limited."""
    with suppress(OSError, AttributeError):
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        limit("RLIMIT_AS", pages * os.sysconf("SC_PAGE_SIZE") + spare_bytes)


def to_refusal(error: Exception) -> Refusal:
    """What an error means for the file."""
    text = str(error).strip()
    if isinstance(error, Refusal):
        return error
    if match := re.search(r"GLOBAL (\S+)", text):
        remedy = "where you trust its source, save its state_dict() as .safetensors there; else leave it alone"
        return Refusal(f"wants {match[1][:100]!r} called when it is opened, and only tensors are read", remedy)
    if isinstance(error, MemoryError) or "can't allocate memory" in text:
        return Refusal("takes more memory than a file of its size can need", DISTRUST)
    if isinstance(error, pickle.UnpicklingError):  # torch's advice to trust the file comes before the reason
        text = text.partition("WeightsUnpickler error:")[2].strip() or text
    return Refusal(f"is not a valid checkpoint: {text.partition(chr(10))[0][:200] or type(error).__name__}")


def main() -> None:
    options = json.loads(sys.argv[1])
    sys.path[:] = options["sys_path"]
    source, folder = Path(options["source"]), Path(options["folder"])
    limit("RLIMIT_CORE", 0)
    limit("RLIMIT_CPU", math.ceil(options["seconds"]))
    limit("RLIMIT_FSIZE", MAX_EXPANSION * source.stat().st_size + options["spare_bytes"])
    try:
        words = rewrite(source, folder, max_tensors=options["max_tensors"], spare_bytes=options["spare_bytes"])
        answer = {"read": words}
    except Exception as error:  # torch raises a dozen kinds at what is no checkpoint
        refusal = to_refusal(error)
        answer = {"what": refusal.what, "remedy": refusal.remedy}
    (folder / "answer.json").write_text(json.dumps(answer), encoding="utf-8")


if __name__ == "__main__":
    main()
