"""The program that opens pickled checkpoints, in a separate process started by `vitrail.weights.pickled`.

A pickle can call any function. In addition to torch's weights-only unpickler, the process is restricted: a minimal
environment without secrets, limited memory, time and disk, no other programs, no connections, and write access to one
folder only. It writes the tensors as safetensors, and what it read or why it failed to ``answer.json``. The parent process
trusts neither.

The program takes one JSON argument and depends on torch and safetensors only. Of vitrail it imports only
`vitrail.runtime.confined`.
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
from collections.abc import Iterator
from pathlib import Path
from typing import Any

SKIPPED = ("optimizer", "optimizers", "optimizer_state_dict", "optimizer_states")  # tensors, but none of a network
MAX_DEPTH = 4  # maximum depth of nested dicts
MAX_VALUES = 100  # maximum number of values per allowed tensor
MAX_EXPANSION = 2  # maximum ratio of the size of the tensors to that of the file; some tensors share memory
FORBIDDEN = (
    *("os.exec", "os.fork", "os.posix_spawn", "os.spawn", "os.startfile", "os.system", "pty.", "subprocess."),
    *("socket.", "urllib.", "ctypes."),
    *("os.chmod", "os.chown", "os.link", "os.remove", "os.rename", "os.rmdir", "os.symlink", "os.truncate", "shutil."),
)
DAMAGED = "it is damaged or was not copied whole; fetch it again"
DISTRUST = "fetch the file from a source you trust"


class Refusal(Exception):
    """Why a file is refused, and how to fix it."""

    def __init__(self, what: str, remedy: str = DAMAGED) -> None:
        super().__init__(what, remedy)
        self.what, self.remedy = what, remedy


def rewrite(source: Path, folder: Path, *, max_tensors: int, spare_bytes: int) -> dict[str, str]:
    """Writes the tensors of ``source`` to ``folder`` as ``model.safetensors``, each once.

    Args:
        spare_bytes: memory in addition to that of torch and the tensors.

    Returns:
        The further names of tensors that have several: averaged weights may be those of the model itself.

    Raises:
        Refusal: the file needs more than tensors, is damaged, or has no dict of plain tensors.
    """
    import torch
    from safetensors.torch import save_file

    from vitrail.runtime.confined import limit_memory

    size = source.stat().st_size
    limit_memory(3 * MAX_EXPANSION * size + spare_bytes)  # loaded tensors, their copy, and the written bytes
    sys.addaudithook(lambda event, arguments: forbid(event, arguments, folder))
    check_zip(source, size)
    torch.serialization.add_safe_globals([Namespace])  # many training programs save their arguments
    loaded = torch.load(source, weights_only=True, map_location="cpu")
    named = name_tensors(loaded, MAX_VALUES * max_tensors)
    if not named:
        other = f"a dict of {len(loaded):,} other items" if isinstance(loaded, dict) else f"one {type(loaded).__name__}"
        raise Refusal(f"contains no named tensors but {other}", "give a checkpoint with a state dict")
    if len(named) > max_tensors:
        raise Refusal(f"holds {len(named):,} tensors", f"up to {max_tensors:,} are read")
    tensors, aliases = separate_aliases(named)
    check_size(tensors, size)
    save_file({name: to_plain(tensor, name) for name, tensor in tensors.items()}, folder / "model.safetensors")
    return aliases


def name_tensors(value: Any, most: int) -> dict[str, Any]:
    """Returns the tensors of nested dicts by their keys, joined with dots: "state_dict.model.norm.weight".

    Raises:
        Refusal: more than ``most`` values, as of dicts that contain each other, or two tensors of one name.
    """
    named: dict[str, Any] = {}
    for count, (name, tensor) in enumerate(walk(value)):
        if count >= most:
            raise Refusal(f"holds more than {most:,} values", "save the state dict alone")
        if tensor is not None and name in named:
            raise Refusal(f"contains two tensors {name[:80]!r}", "save the state dict of one network alone")
        if tensor is not None:
            named[name] = tensor
    return named


def walk(value: Any, before: str = "", depth: int = 0) -> Iterator[tuple[str, Any]]:
    """Yields the name of each value in nested dicts, and the value if it is a tensor, otherwise None."""
    import torch

    for key, inner in value.items() if isinstance(value, dict) and depth <= MAX_DEPTH else ():
        if isinstance(key, str) and key not in SKIPPED:
            yield f"{before}{key}", inner if isinstance(inner, torch.Tensor) else None
            yield from walk(inner, f"{before}{key}.", depth + 1)


def separate_aliases(named: dict[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
    """Returns each tensor by its first name, and the first name of each further one that is the same memory."""
    import torch

    first: dict[Any, str] = {}
    aliases: dict[str, str] = {}
    for name, tensor in named.items():
        if tensor.layout is torch.strided and not tensor.is_nested and tensor.device.type == "cpu":
            memory = (tensor.untyped_storage().data_ptr(), tensor.storage_offset(), tensor.dtype, tensor.is_neg())
            first_name = first.setdefault((*memory, tensor.shape, tensor.stride()), name)
            if first_name != name:
                aliases[name] = first_name
    return {name: tensor for name, tensor in named.items() if name not in aliases}, aliases


def check_size(tensors: dict[str, Any], size: int) -> None:
    """Raises `Refusal` if expanded views would need far more memory than the size of the file."""
    total = sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())
    if total > MAX_EXPANSION * size:
        largest = max(tensors, key=lambda name: tensors[name].numel())
        raise Refusal(f"has {size:,} bytes; its tensors, such as {largest[:80]!r}, would take {total:,}", DISTRUST)


def check_zip(source: Path, size: int) -> None:
    """Raises `Refusal` for a compressed archive; torch does not compress its archives."""
    if not zipfile.is_zipfile(source):
        return
    with zipfile.ZipFile(source) as archive:
        total = sum(member.file_size for member in archive.infolist())
    if total > MAX_EXPANSION * size:
        raise Refusal(f"has {size:,} bytes and expands to {total:,}", DISTRUST)


def to_plain(tensor: Any, name: str) -> Any:
    """Returns a contiguous copy of the tensor. Raises `Refusal` for types that safetensors cannot store."""
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
    """Audit hook that forbids effects outside this process except files in ``folder``, should torch be exploited."""
    writes = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
    opened = event == "open" and isinstance(arguments[2], int) and arguments[2] & writes
    if event.startswith(FORBIDDEN) or (opened and Path(os.fsdecode(arguments[0])).parent != folder):
        raise PermissionError(f"{event} is forbidden here")


def to_refusal(error: Exception) -> Refusal:
    """Converts an exception to a `Refusal`."""
    text = str(error).strip()
    if isinstance(error, Refusal):
        return error
    if match := re.search(r"GLOBAL (\S+)", text):
        remedy = "if you trust its source, save its state_dict() as .safetensors there; otherwise do not use it"
        return Refusal(f"would call {match[1][:100]!r} when it is opened, but only tensors are read", remedy)
    if isinstance(error, MemoryError) or "can't allocate memory" in text:
        return Refusal("takes more memory than a file of its size can need", DISTRUST)
    if isinstance(error, pickle.UnpicklingError):  # skip torch's advice to trust the file, which precedes the reason
        text = text.partition("WeightsUnpickler error:")[2].strip() or text
    return Refusal(f"is not a valid checkpoint: {text.partition(chr(10))[0][:200] or type(error).__name__}")


def main() -> None:
    options = json.loads(sys.argv[1])
    sys.path[:] = options["sys_path"]
    from vitrail.runtime.confined import limit

    source, folder = Path(options["source"]), Path(options["folder"])
    limit("RLIMIT_CORE", 0)
    limit("RLIMIT_CPU", math.ceil(options["seconds"]))
    limit("RLIMIT_FSIZE", MAX_EXPANSION * source.stat().st_size + options["spare_bytes"])
    try:
        aliases = rewrite(source, folder, max_tensors=options["max_tensors"], spare_bytes=options["spare_bytes"])
        answer = {"aliases": aliases}
    except Exception as error:  # torch raises many types for files that are not checkpoints
        refusal = to_refusal(error)
        answer = {"what": refusal.what, "remedy": refusal.remedy}
    (folder / "answer.json").write_text(json.dumps(answer), encoding="utf-8")


if __name__ == "__main__":
    main()
