"""`vitrail convert`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from vitrail.cli.output import AsJson
from vitrail.cli.takes_flags import takes_flags
from vitrail.config.flags_inference import ConvertFlags, LayoutFlags

if TYPE_CHECKING:
    from vitrail.workflows.compare import Difference
    from vitrail.workflows.convert import Converted

MOST_ROWS = 20  # of tensors that differ or are unused


@takes_flags(LayoutFlags, ConvertFlags)
def convert(source: str, destination: str, /, *, json: AsJson = False, **flags: Any) -> int:
    """Write a model in another layout and verify its outputs; or compare two models with --diff.

    Numerics and preprocessing are kept. What a layout cannot express is written to NAME.json beside the file.

    Parameters
    ----------
    source
        A run directory, `latest`, a model folder, weights (.safetensors, .pth, .npz), or hf:owner/name.
    destination
        A new folder (all but google), or a file: .safetensors (native, timm) or .npz (google). With --diff: the other model.
    """
    from vitrail.workflows.api import convert as write

    result: Any = write(source, destination, **flags)
    if flags.get("diff"):
        _print_difference(result, source, destination, json=json)
        return 0 if result.is_none else 1
    print_converted(result, json=json)
    return 0


def print_converted(converted: Converted, *, json: bool) -> None:
    from vitrail.cli.output import columns, one_line
    from vitrail.weights.tensors import printable

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
        *(("unused", printable(name, 200)) for name in converted.unused[:MOST_ROWS]),
        *([("unused", f"and {more} more")] if (more := len(converted.unused) - MOST_ROWS) > 0 else []),
        ("proved", f"tensors equal bit for bit, outputs differ by {converted.difference:.2g} of the largest"),
    ]
    where = "beside it" if converted.path.is_file() else "in its config.json, which others do not read"
    if converted.unsaid or converted.notes:
        rows += [("described", f"{where}: {words}") for words in (*converted.unsaid, *converted.notes)]
    if converted.unsaid and converted.alone is not None:
        rows.append(("without", f"that description outputs differ by {converted.alone:.2g} of the largest"))
    print(columns([*rows, ("written", converted.path)]))


def _print_difference(difference: Difference, first: str, second: str, *, json: bool) -> None:
    from vitrail.cli.output import columns, one_line

    counts = {
        "equal": difference.equal,
        "differing": len(difference.differing),
        "shapes": len(difference.shapes),
        "only_first": len(difference.only_first),
        "only_second": len(difference.only_second),
        "facts": len(difference.facts),
    }
    if json:
        worst = {"largest": max((tensor.relative for tensor in difference.differing), default=0.0)}
        print(one_line({"same": difference.is_none, **counts, **worst}))
        return
    print(
        columns([("tensors equal bit for bit", difference.equal), ("tensors that differ", len(difference.differing))])
    )
    shown = [
        (tensor.name, f"{tensor.absolute:.3g}", f"{tensor.relative:.3g}") for tensor in difference.differing[:MOST_ROWS]
    ]
    more = len(difference.differing) - len(shown)
    if shown:
        print(
            columns(shown, ("tensor", "largest difference", "of the largest")) + (f"\nand {more} more" if more else "")
        )
    rows = [(name, *kinds) for name, kinds in difference.shapes.items()]
    rows += [(name, "there", "-") for name in difference.only_first] + [
        (name, "-", "there") for name in difference.only_second
    ]
    rows += [(name, *(_shorten(value) for value in values)) for name, values in difference.facts.items()]
    if rows:
        print(columns(rows, ("", first, second)))


def _shorten(value: object) -> str:
    text = str(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
