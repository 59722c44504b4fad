"""From the keywords of a function of the API to the arguments of its workflow."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vitrail.config.units import grid_of_patches, numbers, part, size_in_pixels
from vitrail.errors import ConfigError

if TYPE_CHECKING:
    from vitrail.workflows.parts.write import Division

ONE_PERCENT, ALL = "1%", "100%"  # of the images may be bad: of a data set, and of images that are only named


def parse_options(flags: Mapping[str, Any], *, max_bad: str = ONE_PERCENT) -> dict[str, Any]:
    """``classes`` and ``options`` of a workflow from `ModelFlags` or `ImageFlags`; ``max_bad`` holds where it is not given."""
    from vitrail.inference.options import InferenceOptions

    images: dict[str, Any] = {}
    if "batch" in flags:
        share = max_bad if flags["max_bad"] is None else flags["max_bad"]
        images = {**{name: flags[name] for name in ("batch", "workers", "max_pixels", "quiet")}, "max_bad": part(share)}
    if "zoom" in flags:
        images["zoom"] = flags["zoom"]
    how = {"device": flags["device"], "precision": flags["precision"], "tune": flags.get("tune", False)}
    options = InferenceOptions(**parse_weights(flags), **how, **images)
    return {"classes": to_path(flags["classes"]), "options": options}


def parse_weights(flags: Mapping[str, Any]) -> dict[str, Any]:
    """``size``, ``grid`` and ``preprocessing`` of `InferenceOptions` from `WeightsFlags`, and ``size`` where a verb has it too.

    Raises `ConfigError` if both ``size`` and ``crop`` are given.
    """
    size, crop, resize = flags.get("size"), flags["crop"], flags["resize"]
    if size is not None and crop is not None:
        raise ConfigError("--size and --crop are the same, and both are given", "give one of them")
    pixels, grid = crop if size is None else size, flags["grid"]
    preprocessing: dict[str, Any] = {name: numbers(flags[name]) for name in ("mean", "std") if flags[name] is not None}
    if (levels := flags["pixel_range"]) is not None:
        preprocessing["pixel_range"] = numbers(levels)
    if resize is not None:
        preprocessing["resize"] = int(resize) if str(resize).isdigit() else resize
    return {
        "size": None if pixels is None else size_in_pixels(pixels),
        "grid": None if grid is None else grid_of_patches(grid),
        "preprocessing": preprocessing,
    }


def choose_division(flags: Mapping[str, Any]) -> Division | None:
    """How the work of `vitrail.predict` or `vitrail.embed` is divided, from its flags; None without ``parts``.

    Raises `ConfigError` for options that have no meaning with or without ``parts``.
    """
    folder = to_path(flags["parts"])
    if folder is None:
        for name in ("part_size", "shard", "engine"):
            if flags[name] is not None:
                raise ConfigError(
                    f"--{name.replace('_', '-')} divides parts, and there is no --parts", "give --parts DIR"
                )
        return None
    for name in ("out", "overlay", "bad_list", "max_bad"):
        if flags.get(name) is not None:
            what = f"--{name.replace('_', '-')} and --parts are both given"
            raise ConfigError(what, "leave one out: parts have a row for every image, with the reason if it is bad")
    from vitrail.inference.parts import SUFFIXES
    from vitrail.workflows.parts.write import PART_SIZE, Division, parse_shard

    formats = [kind for kind in SUFFIXES if kind != "npy" or "top" not in flags]
    if (kind := flags["format"] or "parquet") not in formats:
        raise ConfigError(f"parts are not written as {kind}", f"--format {' or '.join(formats)}")
    return Division(
        folder=folder,
        size=PART_SIZE if flags["part_size"] is None else flags["part_size"],
        shard=(0, 1) if flags["shard"] is None else parse_shard(flags["shard"]),
        engine=flags["engine"] or "local",
        format=kind,
    )


def to_path(value: str | Path | None) -> Path | None:
    return None if value is None else Path(value)


def list_inputs(inputs: str | Path | Sequence[str | Path]) -> list[str]:
    return [str(inputs)] if isinstance(inputs, str | Path) else [str(path) for path in inputs]


def choose_cache(cache: bool | str | Path) -> Path | None:
    """The folder where features are kept, None for none."""
    from vitrail.inference.feature_cache import default_cache

    return default_cache() if cache is True else Path(cache) if cache else None
