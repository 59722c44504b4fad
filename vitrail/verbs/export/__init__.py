"""`vitrail export`: a model as a file that runs without vitrail, compared with the model before it is put in place."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Unpack

from vitrail.config.units import parse_fraction
from vitrail.errors import ConfigError
from vitrail.runtime.progress import to_stderr
from vitrail.verbs import options
from vitrail.verbs.convert import print_converted
from vitrail.verbs.verb import verb

if TYPE_CHECKING:
    from vitrail.verbs.convert.layouts import Converted
    from vitrail.verbs.export.files import Exported


@verb("to", "check", "int8")
def export(
    model: options.NetworkModel,
    out: Annotated[options.File | None, "Output file; by default named after the model, in the current folder."] = None,
    to: Annotated[
        Literal["onnx", "openvino", "program", "huggingface", "timm", "google"],
        "onnx; openvino (.xml and .bin); program (.pt2, of torch.export); or a layout of weights, as `vitrail convert` "
        "writes it.",
    ] = "onnx",
    *,
    int8: Annotated[
        bool,
        "8-bit weights: a third to half of the size; faster or slower by the processor (ONNX; OpenVINO, which needs --check).",
    ] = False,
    pictures: Annotated[bool, "Include the preprocessing: the graph takes uint8 images of any size (ONNX)."] = False,
    check: Annotated[
        Any,
        "Images for the comparison, as `vitrail train` takes them; with labels, accuracies are compared too. By default "
        "images are generated.",
    ] = None,
    images: Annotated[int | None, "Maximum number of images for the comparison, spread evenly; 300 by default."] = None,
    tolerance: Annotated[
        float | None,
        "Maximum accepted difference: of an output relative to the largest output, 0.0001; with --int8 or --pictures of the "
        "accuracy, 0.02, or without labels the share of changed predictions, 0.05.",
    ] = None,
    size: options.SameAsCrop = None,
    max_bad: Annotated[str | float, "Maximum share of unreadable images."] = "1%",
    force: Annotated[
        bool, "Overwrite a file that is not an export; convert even if the layout cannot express some numerics."
    ] = False,
    log: options.Log = to_stderr,
    **given: Unpack[options.QuietWeights],
) -> Exported | Converted | Any:
    """Writes a model as a file that runs without vitrail, compared with the model on images before it is put in place.

    The file carries classes, preprocessing and the figures of the comparison. An .onnx and an .xml are models for
    `vitrail predict`, `embed`, `evaluate` and `serve` too.

    Returns:
        What was written and how it was proved; of layouts of weights what `convert` returns.

    Raises:
        ConfigError: invalid options, or a package that is not installed.
        CheckpointError: the model cannot be read, or the file computes other outputs; then nothing is left.
        DataError: images that cannot be used.
        DiskError: the disk is full or cannot be written.
    """
    from vitrail.inference.options import InferenceOptions
    from vitrail.verbs.export.files import LAYOUTS, ExportOptions, write_export
    from vitrail.verbs.export.parity import Tolerances

    reading = InferenceOptions(
        **options.parse_weights(given, size), max_bad=parse_fraction(max_bad), quiet=given["quiet"]
    )
    kind = ExportOptions(to=to, int8=int8, pictures=pictures)
    path = Path(out).expanduser() if out is not None else kind.default_path(model)
    if to in LAYOUTS:
        if any(value is not None for value in (check, images, tolerance)):
            what = "a layout of weights is verified tensor by tensor, not on images"
            raise ConfigError(what, "leave --check, --images and --tolerance out")
        from vitrail.verbs.convert.layouts import write_layout
        from vitrail.weights.resolve import resolve_model

        read_as = {"preprocessing": reading.preprocessing, "image_size": reading.size, "grid": reading.grid}
        how = {"force": force, "classes_file": reading.classes, "log": log}
        return write_layout(resolve_model(model).path, path, to, **how, **read_as)
    limits = Tolerances(exact=not (int8 or pictures), tolerance=tolerance)
    if images is not None and images < 1:
        raise ConfigError(f"images is {images}", "compare one image at least, such as --images 300")
    how = {"check": check, "images": images, "force": force, "inference": reading, "log": log}
    return write_export(model, path, kind, limits, **how)


def run(model: str, /, *, json: options.AsJson = False, **given: Any) -> None:
    from vitrail.runtime.process import use_all_cores
    from vitrail.verbs.export.files import Exported

    use_all_cores()
    result = export(model, **given)
    if isinstance(result, Exported):
        _print_exported(result, json=json)
    else:
        print_converted(result, json=json)


def _print_exported(exported: Exported, *, json: bool) -> None:
    from dataclasses import asdict

    from vitrail.verbs.printing import columns, one_line

    figures = exported.figures
    if json:
        whole = {"path": str(exported.path), **asdict(exported.options), "dynamic": exported.dynamic}
        print(one_line({**whole, "bytes": exported.bytes, **figures}))
        return
    kind = "real" if figures["real_images"] else "generated"
    rows = [
        ("compared", f"{figures['images']:,} {kind} images, batches of {figures['batches']}, sizes {figures['sizes']}"),
        ("difference", f"{figures['difference']:.2g} of the largest output"),
        ("agreement", f"{100 * figures['agreement']:.2f} %"),
    ]
    if metric := figures.get("metric"):
        before, after = (100 * figures[f"{metric}_{when}"] for when in ("before", "after"))
        rows.append((metric, f"{before:.2f} % before, {after:.2f} % after"))
    for name in (key.removeprefix("ms_before_") for key in figures if key.startswith("ms_before_")):
        before, after = figures[f"ms_before_{name}"], figures[f"ms_after_{name}"]
        in_bf16 = f" ({figures[f'ms_bf16_{name}']:.2f} ms in bf16)" if f"ms_bf16_{name}" in figures else ""
        rows.append((name.replace("_", " "), f"{before:.2f} ms an image before{in_bf16}, {after:.2f} ms after"))
    images = "of any size" if exported.dynamic or exported.options.pictures else "of one size"
    rows += [("images", images), ("file", f"{exported.bytes / 1e6:,.1f} MB"), ("written", str(exported.path))]
    print(columns(rows))
