"""`vitrail weights get`: public weights into the cache, or into one file for a machine without a network."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

from vitrail.errors import ConfigError, nearest
from vitrail.runtime.progress import to_stderr
from vitrail.verbs import options
from vitrail.verbs.verb import verb


@dataclass(frozen=True)
class DownloadedWeights:
    """Public weights on this machine.

    Args:
        name: ``hf:owner/name@commit``, the name of exactly these weights.
        model: a name of the network, such as "vit-ti16"; empty for a repository that `vitrail.list_models` does not list.
        licence: as timm and the owner state it; empty where it is not known.
        sha256: of the file of weights as it was downloaded; empty where the hub states none.
        path: the folder in the cache, or the file that was written.
    """

    name: str
    model: str
    licence: str
    parameters: int
    classes: int
    sha256: str
    path: Path


@verb()
def get_weights(
    name: Annotated[
        str,
        "The name of a model with public weights, such as vit-ti16 or vit-b16:dino (`vitrail models`), or hf:owner/name.",
    ],
    *,
    out: Annotated[
        options.File | None,
        "Also write them to this .safetensors file, or folder, which `--init` and other verbs take.",
    ] = None,
    log: options.Log = to_stderr,
) -> DownloadedWeights:
    """Downloads public weights, or updates those in the cache; with ``out`` writes a file to carry to another machine.

    The file has everything that a training, a prediction or the server needs: tensors, class names, preprocessing and origin.

    Raises:
        ConfigError: no public weights have this name, or ``out`` exists.
        CheckpointError: the hub cannot be reached, or a file is damaged.
    """
    from vitrail.hub import REMOTE
    from vitrail.weights import load
    from vitrail.weights.hub import fetch, list_hashes
    from vitrail.weights.native import save_model
    from vitrail.weights.public import PUBLIC, find_repository, find_weights
    from vitrail.weights.resolve import resolve_model

    if out is not None and Path(out).exists():
        raise ConfigError(f"{out} exists", "give another name, or remove it first")
    if name.startswith(REMOTE):
        source, public = name, find_repository(name)
    elif public := find_weights(name):
        source = public.source
    else:
        raise ConfigError(f"no public weights of {name!r} are known", f"{nearest(name, PUBLIC)}; or give hf:owner/name")
    folder = fetch(source, update=True, log=log)
    model = load(source, log=log)
    return DownloadedWeights(
        name=resolve_model(source).origin,
        model=public.model if public else "",
        licence=public.licence if public else "",
        parameters=sum(parameter.numel() for parameter in model.parameters()),
        classes=len(model.classes),
        sha256=", ".join(digest for file, digest in list_hashes(folder).items() if not file.endswith(".json")),
        path=folder if out is None else save_model(Path(out), model),
    )


def run(name: str, /, *, json: options.AsJson = False, **given: Any) -> None:
    from vitrail.verbs.printing import columns, one_line

    facts = {**asdict(found := get_weights(name, **given)), "path": str(found.path)}
    print(one_line(facts) if json else columns((key, value) for key, value in facts.items() if value))
