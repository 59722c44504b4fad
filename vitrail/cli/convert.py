"""`vitrail convert`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

if TYPE_CHECKING:
    from vitrail.workflows.compare import Difference
    from vitrail.workflows.convert import Converted

MOST_ROWS = 20  # of tensors that differ


def convert(
    source: str,
    destination: str,
    /,
    *,
    to: Literal["native", "google", "timm", "huggingface"] | None = None,
    diff: Annotated[bool, Parameter(negative="")] = False,
    force: Annotated[bool, Parameter(negative="")] = False,
    classes: Path | None = None,
    size: str | None = None,
    channels: int | None = None,
    head: Path | None = None,
    json: Annotated[bool, Parameter(negative="")] = False,
) -> int:
    """Write a model in another layout, proved by its outputs; or compare two with --diff.

    Numerics and preprocessing go with it. What a layout cannot say stands in NAME.json beside the file.

    Parameters
    ----------
    source
        A run directory, `latest`, a model folder, a file of weights, or hf:owner/name.
    destination
        A new folder (all but google), or a file: .safetensors (native, timm) or .npz (google). With --diff: the other model.
    to
        The layout: vitrail's own, Google's, timm's, or that of Hugging Face transformers.
    diff
        Compare the two, tensor by tensor; the exit code is 0 where they are equal and 1 where not.
    force
        Write it though the layout has no words for some numerics.
    classes
        A text file that names the outputs, one a line, for weights that carry no names.
    size
        Pixels, as 384 or 384x256 (height x width); positions are resized.
    channels
        Of the images; the first layer follows.
    head
        A text file of other classes, one a line: the head becomes one of zeros for these.
    json
        One JSON object on the last line of stdout.
    """
    from vitrail.errors import ConfigError
    from vitrail.weights import to_stderr

    if diff:
        from vitrail.workflows.compare import compare

        if to or force or classes or size or channels or head:
            raise ConfigError("--diff compares two models as they are", "leave the other flags out, except --json")
        found = compare(source, destination, log=to_stderr)
        _show_difference(found, source, destination, json=json)
        return 0 if found.is_none else 1
    if to is None:
        raise ConfigError(
            "no layout was named", "--to native, google, timm or huggingface; or --diff to compare two models"
        )
    from vitrail.config.units import size_in_pixels
    from vitrail.weights.adapt import read_classes
    from vitrail.workflows.convert import convert as write

    done = write(
        source,
        destination,
        to,
        force=force,
        classes_file=classes,
        image_size=size_in_pixels(size) if size else None,
        in_channels=channels,
        classes=read_classes(head) if head else None,
        log=to_stderr,
    )
    show(done, json=json)
    return 0


def show(done: Converted, *, json: bool) -> None:
    from vitrail.cli.output import columns, one_line

    figures = {"tensors": done.tensors, "parameters": done.parameters, "difference": done.difference}
    if json:
        lists = {name: list(getattr(done, name)) for name in ("unused", "unsaid", "notes")}
        print(one_line({"path": str(done.path), "from": done.source, "to": done.layout, **figures, **lists}))
        return
    rows = [
        ("model", done.model),
        ("layout", f"{done.source} to {done.layout}"),
        ("tensors", f"{done.tensors} of {done.parameters:,} parameters"),
        *(("unused", name) for name in done.unused),
        ("proved", f"tensors equal bit for bit, outputs differ by {done.difference:.2g} of the largest"),
    ]
    where = "beside it" if done.path.is_file() else "in its config.json, which others do not read"
    if done.unsaid or done.notes:
        rows += [("described", f"{where}: {words}") for words in (*done.unsaid, *done.notes)]
    if done.unsaid and done.alone is not None:
        rows.append(("without", f"that description outputs differ by {done.alone:.2g} of the largest"))
    print(columns([*rows, ("written", done.path)]))


def _show_difference(found: Difference, first: str, second: str, *, json: bool) -> None:
    from vitrail.cli.output import columns, one_line

    counts = {
        "equal": found.equal,
        "differing": len(found.differing),
        "shapes": len(found.shapes),
        "only_first": len(found.only_first),
        "only_second": len(found.only_second),
        "facts": len(found.facts),
    }
    if json:
        worst = {"largest": max((each.relative for each in found.differing), default=0.0)}
        print(one_line({"same": found.is_none, **counts, **worst}))
        return
    print(columns([("tensors equal bit for bit", found.equal), ("tensors that differ", len(found.differing))]))
    shown = [(each.name, f"{each.absolute:.3g}", f"{each.relative:.3g}") for each in found.differing[:MOST_ROWS]]
    more = len(found.differing) - len(shown)
    if shown:
        print(
            columns(shown, ("tensor", "largest difference", "of the largest")) + (f"\nand {more} more" if more else "")
        )
    rows = [(name, *kinds) for name, kinds in found.shapes.items()]
    rows += [(name, "there", "-") for name in found.only_first] + [(name, "-", "there") for name in found.only_second]
    rows += [(name, *(_short(value) for value in values)) for name, values in found.facts.items()]
    if rows:
        print(columns(rows, ("", first, second)))


def _short(value: object) -> str:
    text = str(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
