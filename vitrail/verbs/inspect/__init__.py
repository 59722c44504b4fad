"""`vitrail inspect`: what a model has learned, by the paper's own figures, as one page and as numbers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Unpack

from vitrail.config.units import size_in_pixels, split_commas
from vitrail.errors import ConfigError
from vitrail.runtime.progress import to_stderr
from vitrail.verbs import options
from vitrail.verbs.verb import verb

if TYPE_CHECKING:
    from vitrail.tasks import Task

VERDICTS = {True: "true", False: "false", None: "not asked"}
COMPARED = ("model", "height", "width", "parameters", "multiply_adds", "images_per_second", "largest_batch")

Models = Annotated[
    "str | Path | Task | Sequence[str | Path | Task]",
    "A run directory, `latest`, a model folder, weights (.safetensors, .pth, .npz), or hf:owner/name; in Python also a "
    "`Classifier`, or with ``cost`` a list of models. Names such as vit-b16 stand for random weights there.",
]


@verb("data", "out", "against")
def inspect(
    model: Models,
    *,
    out: Annotated[options.File, "The folder for report.html, numbers.json and the pictures."],
    data: Annotated[
        Any, "Images to analyse, labelled or not: what `vitrail train` takes, or a folder of images."
    ] = None,
    most: Annotated[int, "Maximum number of images, spread evenly over the data."] = 512,
    against: Annotated[
        Any,
        "Another model, beside the first on one page: heads, findings, positions and filters of both, with their differences.",
    ] = None,
    registers: Annotated[
        int,
        "Neurons that write outlier norms into a test-time register instead of patches: everything measured on images is then "
        "that of a ViT with this register. Its weights do not change.",
    ] = 0,
    cost: Annotated[
        bool,
        "Also measure time and memory at larger image sizes; of several models, compare images per second and the largest "
        "batch.",
    ] = False,
    sizes: Annotated[
        str | Sequence[Any] | None,
        "Image sizes of the comparison, as 64,128,224x160; 64 to 512 by default.",
    ] = None,
    cost_batch: Annotated[
        int | None,
        "Images per timed pass of the comparison; 64 by default, and 8 on a CPU, fewer if they do not fit.",
    ] = None,
    command: options.Command = "vitrail.inspect",
    log: options.Log = to_stderr,
    **given: Unpack[options.Reading],
) -> tuple[Path, dict[str, Any]]:
    """Inspects a model: the paper's figures of its filters, positions and heads, on one page and as numbers.

    With --against, it sets the heads, positions and filters of two models side by side. With --cost and several models, or
    with --sizes, it compares their speed, memory and largest batch instead.

    Returns:
        The path of the report, and the numbers.

    Raises:
        ConfigError: several models without ``cost`` or with ``against``; no model that supports any of the sizes; ``registers``
            without ``data``, or of a model that is no ViT.
        DataError: none of the images could be read; ``registers`` of a model without outlier norms on them.
        DiskError: ``out`` cannot be written.
    """
    reading = options.parse(given)
    from vitrail.verbs.inspect.measurements import inspect_model, inspect_pair

    folder = Path(out)
    models: list[Any] = list(model) if isinstance(model, list | tuple) else [model]
    how: dict[str, Any] = {"options": reading, "command": command, "log": log}
    if most < 1:
        raise ConfigError(f"most is {most}", "use at least one image, such as --most 128")
    if registers < 0:
        raise ConfigError(
            f"registers is {registers}", "give the number of neurons, such as --registers 2, or 0 for none"
        )
    if registers and (data is None or against is not None or len(models) != 1):
        raise ConfigError("--registers is for one model and images", "give one MODEL and --data, without --against")
    if against is not None:
        if len(models) != 1 or cost:
            remedy = "give one model before --against; vitrail inspect MODEL OTHER --cost compares speed and memory"
            raise ConfigError("--against compares exactly two models and cannot be combined with --cost", remedy)
        return inspect_pair((models[0], against), folder, data, most=most, **how)
    if len(models) != 1 or sizes is not None or cost_batch is not None:
        if not cost:
            what = "several models, sizes and a cost batch are for --cost alone"
            raise ConfigError(what, "add --cost, or leave them out")
        if data is not None:
            raise ConfigError("a comparison of cost takes no --data", "inspect one model without --sizes")
        from vitrail.verbs.inspect.cost import SIZES, compare_costs

        pixels = SIZES if sizes is None else [size_in_pixels(size) for size in split_commas(sizes)]
        return compare_costs(models, folder, sizes=pixels, batch=cost_batch, **how)
    return inspect_model(models[0], folder, data, most=most, registers=registers, cost=cost, **how)


def run(
    model: str,
    /,
    *others: Annotated[
        str, "With --cost, further models to compare it with. Names such as vit-b16 stand for random weights."
    ],
    json: options.AsJson = False,
    **given: Any,
) -> None:
    from vitrail.runtime.process import use_all_cores
    from vitrail.verbs.printing import columns, command_line, one_line

    use_all_cores()
    report, figures = inspect([model, *others] if others else model, command=command_line(), **given)
    if json:
        plain = {name: value for name, value in figures.items() if isinstance(value, int | float | str)}
        print(one_line({"report": str(report), **plain}))
        return
    if "costs" in figures:
        print(columns(([row[name] for name in COMPARED] for row in figures["costs"]), COMPARED))
        print(*figures["notes"], sep="\n", end="\n" * bool(figures["notes"]))
    if "models" in figures:
        print(*show_pair(figures), sep="\n")
    else:
        for claim, holds in figures.get("findings", {}).items():
            print(f"{VERDICTS[holds]:10}{claim}")
    print(report)


def show_pair(figures: dict[str, Any]) -> Iterator[str]:
    """Lines of two models: the findings, the figures of their heads, and the notes."""
    from vitrail.verbs.printing import columns

    one, other = figures["models"]
    rows = [[claim, *(VERDICTS[holds] for holds in both), ""] for claim, both in figures["findings"].items()]
    rows += [
        [name, *(f"{each['figures'][name]:.3f}" for each in (one, other)), f"{change:+.3f}"]
        for name, change in figures["differences"].items()
    ]
    yield columns(rows, ["", one["name"], other["name"], "difference"])
    yield from figures["notes"]
