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
from pathlib import Path
from typing import Any

# common keys of state dicts; averaged weights first, since these are the published ones (as in timm)
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
PREFIXES = ("module.", "_orig_mod.", "model.", "net.", "backbone.")  # prefixes added by wrappers of the model
COUNTER = "n_averaged"  # of torch.optim.swa_utils.AveragedModel, beside "module."
MAX_DEPTH = 3  # maximum depth of nested wrappers
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


def rewrite(source: Path, folder: Path, *, max_tensors: int, spare_bytes: int) -> str:
    """Writes the tensors of ``source`` to ``folder`` as ``model.safetensors``.

    Args:
        spare_bytes: memory in addition to that of torch and the tensors.

    Returns:
        A summary: the number of tensors, the chosen state dict, what was left out, the removed prefix.

    Raises:
        Refusal: the file needs more than tensors, is damaged, or has no state dict of plain tensors.
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
    keys, state = find_state(loaded) or ((), {})
    names = [name for name, value in state.items() if isinstance(name, str) and isinstance(value, torch.Tensor)]
    if any(name.startswith("module.") for name in names):
        names = [name for name in names if name != COUNTER]
    if not names:
        other = f"a dict of {len(loaded):,} other items" if isinstance(loaded, dict) else f"one {type(loaded).__name__}"
        raise Refusal(f"contains no named tensors but {other}", "give a checkpoint with a state dict")
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
    """Returns the first dict that contains tensors, inner dicts first, and the keys that lead to it."""
    import torch

    if not isinstance(value, dict) or len(keys) > MAX_DEPTH:
        return None
    for name in WRAPPERS:
        if (inner := find_state(value.get(name), (*keys, name))) is not None:
            return inner
    return (keys, value) if any(isinstance(item, torch.Tensor) for item in value.values()) else None


def shared_prefix(names: list[str]) -> str:
    """Returns the concatenated `PREFIXES` with which every name begins."""
    prefix = ""
    while added := next((part for part in PREFIXES if all(name.startswith(prefix + part) for name in names)), ""):
        prefix += added
    return prefix


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
        words = rewrite(source, folder, max_tensors=options["max_tensors"], spare_bytes=options["spare_bytes"])
        answer = {"read": words}
    except Exception as error:  # torch raises many types for files that are not checkpoints
        refusal = to_refusal(error)
        answer = {"what": refusal.what, "remedy": refusal.remedy}
    (folder / "answer.json").write_text(json.dumps(answer), encoding="utf-8")


if __name__ == "__main__":
    main()
