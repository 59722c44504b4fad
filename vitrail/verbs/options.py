"""The options that several verbs have, once: type and meaning. A verb names those that it has among its parameters."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypedDict

from vitrail.config.units import grid_of_patches, numbers, parse_fraction, size_in_pixels
from vitrail.errors import ConfigError
from vitrail.plugins import register_loss, register_metric
from vitrail.runtime.progress import LogFunction
from vitrail.untrusted.limits import PIXELS
from vitrail.verbs.verb import Python

if TYPE_CHECKING:
    from vitrail.inference.options import InferenceOptions
    from vitrail.runtime.distributed import Ranks
    from vitrail.tasks import Task

ALL = "100%"  # of the images may be bad where they are only named
PREPROCESSING = (
    "crop",
    "grid",
    "resize",
    "mean",
    "std",
    "pixel_range",
)  # options of `Weights` that decide the features
Pixels = int | str | Sequence[int]
File = Path | str

FILES = "A run directory, `latest`, a model folder, weights (.safetensors, .pth, .npz)"
NETWORK, MODEL = f"{FILES}, or hf:owner/name", f"{FILES}, hf:owner/name, or an exported graph"
AnyModel = Annotated["str | Path | Task", f"{MODEL}; in Python also a `Classifier`."]
NetworkModel = Annotated["str | Path | Task", f"{NETWORK}; in Python also a `Classifier`."]
Data = Annotated[Any, "A data set as `vitrail train` takes it: a folder, a table, annotations, or a built-in name."]
Columns = Annotated[
    str | Mapping[str, str] | None,
    "Columns of a table that hold the path, the label and the split, where they have other names: path=file,label=breed.",
]
Inputs = Annotated[
    str | Path | Sequence[str | Path], "Files, folders, globs, a manifest, or - for paths on standard input."
]
SameAsCrop = Annotated[Pixels | None, "The same as --crop."]
BadList = Annotated[File | None, "A CSV of the images that could not be read, with the reason."]
Zoom = Annotated[
    float,
    "Show pictures this many times as large to a detector or a segmenter, in overlapping windows: for small objects.",
]
Tta = Annotated[
    Literal["flip", "5crop"] | None,
    "Test-time augmentation of a classifier or a regressor: the mean of the outputs for the picture and its mirror image, or "
    "(classifiers) for four corners and the middle.",
]
Quiet = Annotated[bool, "No progress.", False]
Tune = Annotated[bool, "On a CPU use the fastest way to compute, measured where that saves time.", True]

# frozen features
Neighbours = Annotated[int, "Neighbours that vote."]
Shots = Annotated[str | Sequence[int], "Images per class, separated by commas."]
Cache = Annotated[bool | str | Path, "Cache the features in VITRAIL_CACHE, or ~/.cache/vitrail/features."]

# what only Python has
Log = Annotated[LogFunction, Python("Called with each line on what is assumed and found.")]
Command = Annotated[str, Python("How the report names the call.")]
SharedWork = Annotated[
    "Ranks | None",
    Python("Processes that compute this together, each of which calls this and returns the same (`distributed.join`)."),
]

OwnMetrics = Annotated[
    Mapping[str, Callable[..., float]] | Sequence[str] | None,
    Python(
        "Further metrics of a classifier: names of `vitrail.register_metric`, or functions by name, from probabilities (N, K) "
        "and targets (N,) to a number."
    ),
]

# what only the command line has
AsJson = Annotated[bool, "One JSON object on the last line of stdout."]
FindingsAsJson = Annotated[bool, "The findings as one JSON object on the last line of stdout."]


class Weights(TypedDict, total=False):
    """What weights do not state themselves."""

    classes: Annotated[File | None, "A text file with the class names, one per line, for weights without class names."]
    crop: Annotated[
        Pixels | None,
        "Input size of the network in pixels, as 384 or 384x256 (height x width); position embeddings are interpolated.",
    ]
    grid: Annotated[
        str | Sequence[int] | None,
        "Rows x columns of patches of the position embeddings, as 4x9, for weights that do not state them.",
    ]
    resize: Annotated[int | str | None, "Pixels of the shorter side before the crop, or squash, fit or none."]
    mean: Annotated[str | Sequence[float] | None, "Mean of the channels, of values in [0, 1]: 0.485,0.456,0.406."]
    std: Annotated[str | Sequence[float] | None, "Standard deviation of the channels, in the same form."]
    pixel_range: Annotated[
        str | Sequence[float] | None, "Values of 16-bit and float images that become black and white: 0,4095."
    ]


class QuietWeights(Weights, total=False):
    """What weights do not state themselves, and whether progress is shown."""

    quiet: Quiet


class Placed(Weights, total=False):
    """Where a model computes."""

    device: Annotated[str | None, "cuda, mps or cpu."]


class Compute(Placed, total=False):
    """Where a model computes, and how exactly."""

    precision: Annotated[Literal["fp32", "bf16"], "fp32 or bf16.", "fp32"]


class FastCompute(Placed, total=False):
    """Where a model computes, and in a precision that may be chosen by measurement."""

    precision: Annotated[
        Literal["auto", "fp32", "bf16"],
        "fp32 or bf16; auto takes bf16 for 200 images or more where it is 1.3 times as fast and its answers are those of fp32.",
        "auto",
    ]


class Images(TypedDict, total=False):
    """How images are read."""

    batch: Annotated[int, "Images per batch; it does not change the results.", 64]
    workers: Annotated[int, "Processes that read images.", 0]
    max_bad: Annotated[
        str | float | None,
        "Maximum share of unreadable images before the run stops; 1% by default, 100% for predict, embed and explain.",
    ]
    max_pixels: Annotated[int, "Maximum width x height of an image file; a larger one counts as unreadable.", PIXELS]
    quiet: Quiet


class Reading(Images, Compute, total=False):
    """How images are read, and a model computes."""


class TunedReading(Reading, total=False):
    """How images are read by verbs that may measure the fastest way to compute."""

    tune: Tune


class Parts(TypedDict, total=False):
    """How many images are divided into parts."""

    bad_list: BadList
    parts: Annotated[
        File | None,
        "A folder for the results of many images, in parts: the same command resumes, wherever it was killed.",
    ]
    part_size: Annotated[int | None, "With --parts: images per part, 4096 by default."]
    shard: Annotated[
        str | None, "With --parts: compute only the share of one of several processes, 0/8 to 7/8 of eight."
    ]
    engine: Annotated[
        Literal["local", "ray"] | None,
        "With --parts: local, this process, by default; or ray, actors on a machine or a cluster that Ray manages.",
    ]


class ReadingInParts(Parts, Images, FastCompute, total=False):
    """How images are read one after another, or in parts."""

    tune: Tune


def parse(given: Mapping[str, Any], *, max_bad: str = "1%", **further: Any) -> InferenceOptions:
    """Returns how model and images are read, of options of `Reading`; ``max_bad`` holds where theirs is None."""
    from vitrail.inference.options import InferenceOptions

    kept = ("device", "precision", "tune", "batch", "workers", "max_pixels", "quiet")
    own = {name: given[name] for name in kept if name in given}
    share = given.get("max_bad")
    return InferenceOptions(
        **own, **further, **parse_weights(given), max_bad=parse_fraction(max_bad if share is None else share)
    )


def parse_weights(given: Mapping[str, Any], size: Pixels | None = None) -> dict[str, Any]:
    """Returns the fields of `InferenceOptions` for what weights do not state. Raises `ConfigError` for a size and a crop."""
    crop, resize, grid = given["crop"], given["resize"], given["grid"]
    if size is not None and crop is not None:
        raise ConfigError("--size is an alias of --crop, and both were given", "give only one")
    pixels = crop if size is None else size
    preprocessing: dict[str, Any] = {
        name: numbers(given[name]) for name in ("mean", "std", "pixel_range") if given[name] is not None
    }
    if resize is not None:
        preprocessing["resize"] = int(resize) if str(resize).isdigit() else resize
    return {
        "size": None if pixels is None else size_in_pixels(pixels),
        "grid": None if grid is None else grid_of_patches(grid),
        "preprocessing": preprocessing,
        "classes": to_path(given["classes"]),
    }


def to_path(file: str | Path | None) -> Path | None:
    return None if file is None else Path(file)


def list_inputs(inputs: str | Path | Sequence[str | Path]) -> list[str]:
    return [str(inputs)] if isinstance(inputs, str | Path) else list(map(str, inputs))


def choose_cache(cache: bool | str | Path) -> Path | None:
    """Returns the folder where features are kept, None for none."""
    from vitrail.inference.features import default_cache

    return default_cache() if cache is True else Path(cache) if cache else None


def names_of_metrics(metrics: Mapping[str, Callable[..., float]] | Sequence[str] | None) -> list[str]:
    """Returns the names of metrics; functions are registered. Raises `ConfigError` as `register_metric`."""
    for name, function in metrics.items() if isinstance(metrics, Mapping) else ():
        register_metric(name, function)
    return list(metrics or ())


def name_of_loss(loss: Any) -> str:
    """Registers a function or module under its own name, and returns that. Raises `ConfigError` as `register_loss`."""
    name = getattr(loss, "__name__", type(loss).__name__)
    if not name.isidentifier():
        raise ConfigError(
            f"the loss is {name}, which has no name", "name it: vitrail.register_loss(NAME, loss), loss=NAME"
        )
    register_loss(name, loss)
    return name
