"""`vitrail export`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

if TYPE_CHECKING:
    from vitrail.workflows.export import Exported


def export(
    model: str,
    /,
    *,
    to: Literal["onnx", "program", "huggingface", "timm", "google"] = "onnx",
    out: Path | None = None,
    int8: Annotated[bool, Parameter(negative="")] = False,
    pictures: Annotated[bool, Parameter(negative="")] = False,
    check: str | None = None,
    images: int | None = None,
    tolerance: float | None = None,
    size: str | None = None,
    classes: Path | None = None,
    max_bad: str = "1%",
    force: Annotated[bool, Parameter(negative="")] = False,
    quiet: Annotated[bool, Parameter(negative="")] = False,
    json: Annotated[bool, Parameter(negative="")] = False,
) -> None:
    """Write a model as a file that runs without vitrail, compared with the model on images before it is put in its place.

    The file carries classes, preprocessing and the figures of the comparison. An .onnx is a model for `vitrail predict`,
    `embed`, `evaluate` and `serve` too.

    Parameters
    ----------
    model
        A run directory, `latest`, a model folder, a file of weights, or hf:owner/name.
    to
        onnx; program (.pt2, of torch.export); or a layout of weights, as `vitrail convert` writes it.
    out
        The file; by default one in this folder with the model's name.
    int8
        8-bit weights: a third of the size, and faster on a CPU (ONNX).
    pictures
        The graph takes pictures of any size, uint8, and resizes, crops and normalises them itself (ONNX).
    check
        Images to compare on, as `vitrail train` takes them; labelled ones tell the accuracy before and after. By default
        some are generated.
    images
        How many at most, spread evenly; 300 by default.
    tolerance
        How far it may be off: the largest difference of an output as a share of the largest, 0.0001; with --int8 or
        --pictures the accuracy that it loses, 0.02, or without labels the share of other answers, 0.05.
    size
        Pixels, as 384 or 384x256 (height x width); positions are resized.
    classes
        A text file that names the outputs, one a line, for weights that carry no names.
    max_bad
        Stop when more of the images are bad than this.
    force
        Write over a file that is no export; to a layout of weights, though it has no words for some numerics.
    quiet
        No progress.
    json
        One JSON object on the last line of stdout.
    """
    from vitrail.cli.convert import show
    from vitrail.config.units import part, size_in_pixels
    from vitrail.inference.options import InferenceOptions
    from vitrail.runtime.process import use_all_cores
    from vitrail.workflows.export import Exported, export_model

    use_all_cores()
    done = export_model(
        model,
        out,
        to,
        int8=int8,
        pictures=pictures,
        check=check,
        images=images,
        tolerance=tolerance,
        force=force,
        classes=classes,
        options=InferenceOptions(size=size_in_pixels(size) if size else None, max_bad=part(max_bad), quiet=quiet),
    )
    if isinstance(done, Exported):
        _show(done, json=json)
    else:
        show(done, json=json)


def _show(done: Exported, *, json: bool) -> None:
    from vitrail.cli.output import columns, one_line

    found = done.figures
    if json:
        told = {"path": str(done.path), "to": done.how.to, "int8": done.how.int8, "pictures": done.how.pictures}
        print(one_line({**told, "dynamic": done.dynamic, "bytes": done.bytes, **found}))
        return
    kind = "real" if found["real_images"] else "generated"
    rows = [
        ("compared", f"{found['images']:,} {kind} images, batches of {found['batches']}, sizes {found['sizes']}"),
        ("difference", f"{found['difference']:.2g} of the largest output"),
        ("agreement", f"{100 * found['agreement']:.2f} %"),
    ]
    if metric := found.get("metric"):
        rows.append(
            (metric, f"{100 * found[f'{metric}_before']:.2f} % before, {100 * found[f'{metric}_after']:.2f} % after")
        )
    for name in (each.removeprefix("ms_before_") for each in found if each.startswith("ms_before_")):
        before, after = found[f"ms_before_{name}"], found[f"ms_after_{name}"]
        rows.append((name.replace("_", " "), f"{before:.2f} ms an image before, {after:.2f} ms after"))
    images = "of any size" if done.dynamic or done.how.pictures else "of one size"
    rows += [("images", images), ("file", f"{done.bytes / 1e6:,.1f} MB"), ("written", str(done.path))]
    print(columns(rows))
