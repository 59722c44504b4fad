"""`vitrail export`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Unpack

from vitrail.cli.output import AsJson
from vitrail.cli.takes_flags import takes_flags
from vitrail.config.flags_inference import ExportFlags, ExportToFlags

if TYPE_CHECKING:
    from vitrail.workflows.export import Exported


@takes_flags(ExportToFlags, ExportFlags)
def export(model: str, /, *, json: AsJson = False, **flags: Unpack[ExportFlags]) -> None:
    """Write a model as a file that runs without vitrail, compared with the model on images before it is put in its place.

    The file carries classes, preprocessing and the figures of the comparison. An .onnx is a model for `vitrail predict`,
    `embed`, `evaluate` and `serve` too.

    Parameters
    ----------
    model
        A run directory, `latest`, a model folder, weights (.safetensors, .pth, .npz), or hf:owner/name.
    """
    from vitrail.cli.convert import print_converted
    from vitrail.runtime.process import use_all_cores
    from vitrail.workflows.api import export as write
    from vitrail.workflows.export import Exported

    use_all_cores()
    result = write(model, **flags)
    if isinstance(result, Exported):
        _print_exported(result, json=json)
    else:
        print_converted(result, json=json)


def _print_exported(exported: Exported, *, json: bool) -> None:
    from vitrail.cli.output import columns, one_line

    figures = exported.figures
    if json:
        kind = {
            "path": str(exported.path),
            "to": exported.options.to,
            "int8": exported.options.int8,
            "pictures": exported.options.pictures,
        }
        print(one_line({**kind, "dynamic": exported.dynamic, "bytes": exported.bytes, **figures}))
        return
    kind = "real" if figures["real_images"] else "generated"
    rows = [
        ("compared", f"{figures['images']:,} {kind} images, batches of {figures['batches']}, sizes {figures['sizes']}"),
        ("difference", f"{figures['difference']:.2g} of the largest output"),
        ("agreement", f"{100 * figures['agreement']:.2f} %"),
    ]
    if metric := figures.get("metric"):
        rows.append(
            (
                metric,
                f"{100 * figures[f'{metric}_before']:.2f} % before, {100 * figures[f'{metric}_after']:.2f} % after",
            )
        )
    for name in (key.removeprefix("ms_before_") for key in figures if key.startswith("ms_before_")):
        before, after = figures[f"ms_before_{name}"], figures[f"ms_after_{name}"]
        rows.append((name.replace("_", " "), f"{before:.2f} ms an image before, {after:.2f} ms after"))
    images = "of any size" if exported.dynamic or exported.options.pictures else "of one size"
    rows += [("images", images), ("file", f"{exported.bytes / 1e6:,.1f} MB"), ("written", str(exported.path))]
    print(columns(rows))
