"""`vitrail convert`: a model in another layout, verified; or two models compared."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Unpack

from vitrail.errors import ConfigError
from vitrail.runtime.progress import to_stderr
from vitrail.verbs import options
from vitrail.verbs.verb import verb

if TYPE_CHECKING:
    from vitrail.verbs.convert.compare import Difference
    from vitrail.verbs.convert.layouts import Converted

MAX_ROWS = 20  # of tensors that differ or are unused


@verb("to")
def convert(
    source: Annotated[str | Path, f"{options.NETWORK}."],
    destination: Annotated[
        str | Path,
        "A new folder (all but google), or a file: .safetensors (native, timm) or .npz (google). With --diff: the other model.",
    ],
    to: Annotated[
        Literal["native", "google", "timm", "huggingface"] | None,
        "The layout: vitrail's own, Google's, timm's, or that of Hugging Face transformers.",
    ] = None,
    *,
    diff: Annotated[
        bool, "Compare the two, tensor by tensor; the exit code is 0 if they are equal and 1 if not."
    ] = False,
    force: Annotated[bool, "Convert even if the layout cannot express some numerics of the model."] = False,
    size: options.SameAsCrop = None,
    channels: Annotated[int | None, "Number of input channels; the first layer is adapted."] = None,
    head: Annotated[
        options.File | Sequence[str] | None,
        "A text file with new class names, one per line; the head is replaced by a zero-initialised one.",
    ] = None,
    log: options.Log = to_stderr,
    **given: Unpack[options.Weights],
) -> Converted | Difference | Any:
    """Writes a model in another layout and verifies its outputs; or compares two models with --diff.

    Numerics and preprocessing are kept. What a layout cannot express is written to NAME.json beside the file.

    Returns:
        What was written and how it was proved; with ``diff`` the difference.

    Raises:
        CheckpointError: the layout cannot express the model, or the copy computes other outputs; then nothing is left.
        ConfigError: an unknown layout, or a destination that exists and is no model in it.
    """
    if diff:
        if any((to, force, size, channels, head, *given.values())):
            raise ConfigError("--diff compares two models as they are", "leave the other flags out, except --json")
        from vitrail.verbs.convert.compare import compare

        return compare(source, destination, log=log)
    if to is None:
        remedy = "--to native, google, timm or huggingface; or --diff to compare two models"
        raise ConfigError("no layout was named", remedy)
    from vitrail.verbs.convert.layouts import write_layout
    from vitrail.weights.adapt import read_classes

    weights = options.parse_weights(given, size)
    read_as = {"preprocessing": weights["preprocessing"], "image_size": weights["size"], "grid": weights["grid"]}
    names = read_classes(Path(head)) if isinstance(head, str | Path) else head
    changes = {"classes_file": weights["classes"], "in_channels": channels, "classes": names}
    return write_layout(source, destination, to, force=force, log=log, **read_as, **changes)


def run(source: str, destination: str, /, *, json: options.AsJson = False, **given: Any) -> int:
    result: Any = convert(source, destination, **given)
    if given.get("diff"):
        _print_difference(result, source, destination, json=json)
        return 0 if result.is_none else 1
    print_converted(result, json=json)
    return 0


def print_converted(converted: Converted, *, json: bool) -> None:
    from vitrail.text import printable
    from vitrail.verbs.printing import columns, one_line

    figures = {"tensors": converted.tensors, "parameters": converted.parameters, "difference": converted.difference}
    if json:
        lists = {name: list(getattr(converted, name)) for name in ("unused", "unsaid", "notes")}
        place = {"path": str(converted.path), "from": converted.source, "to": converted.layout}
        place |= {"sha256": converted.sha256} if converted.sha256 else {}
        print(one_line({**place, **figures, **lists}))
        return
    rows = [
        ("model", converted.model),
        ("layout", f"{converted.source} to {converted.layout}"),
        ("tensors", f"{converted.tensors} of {converted.parameters:,} parameters"),
        *([("sha256", f"{converted.sha256} of the source")] if converted.sha256 else []),
        *(("unused", printable(name, 200)) for name in converted.unused[:MAX_ROWS]),
        *([("unused", f"and {more} more")] if (more := len(converted.unused) - MAX_ROWS) > 0 else []),
        ("proved", f"tensors equal bit for bit, outputs differ by {converted.difference:.2g} of the largest"),
    ]
    where = "beside it" if converted.path.is_file() else "in its config.json, which others do not read"
    if converted.unsaid or converted.notes:
        rows += [("described", f"{where}: {words}") for words in (*converted.unsaid, *converted.notes)]
    if converted.unsaid and converted.alone is not None:
        rows.append(("without", f"that description outputs differ by {converted.alone:.2g} of the largest"))
    print(columns([*rows, ("written", converted.path)]))


def _print_difference(difference: Difference, first: str, second: str, *, json: bool) -> None:
    from vitrail.verbs.printing import columns, one_line

    if json:
        kinds = ("differing", "shapes", "only_first", "only_second", "facts")
        counts = {"equal": difference.equal, **{kind: len(getattr(difference, kind)) for kind in kinds}}
        worst = max((tensor.relative for tensor in difference.differing), default=0.0)
        print(one_line({"same": difference.is_none, **counts, "largest": worst}))
        return
    differing = difference.differing
    print(columns([("tensors equal bit for bit", difference.equal), ("tensors that differ", len(differing))]))
    if shown := [(each.name, f"{each.absolute:.3g}", f"{each.relative:.3g}") for each in differing[:MAX_ROWS]]:
        print(columns(shown, ("tensor", "largest difference", "of the largest")))
    if len(differing) > MAX_ROWS:
        print(f"and {len(differing) - MAX_ROWS} more")
    rows = [(name, *kinds) for name, kinds in difference.shapes.items()]
    rows += [(name, "there", "-") for name in difference.only_first]
    rows += [(name, "-", "there") for name in difference.only_second]
    rows += [
        (name, *(text if len(text) <= 60 else f"{text[:57]}..." for text in map(str, values)))
        for name, values in difference.facts.items()
    ]
    if rows:
        print(columns(rows, ("", first, second)))
