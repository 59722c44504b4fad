"""From the keywords of a function of the API to the arguments of its workflow."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from vitrail.config.units import numbers, part, size_in_pixels
from vitrail.errors import ConfigError

ONE_PERCENT, ALL = "1%", "100%"  # of the images may be bad: of a data set, and of images that are only named


def parse_options(flags: Mapping[str, Any], *, max_bad: str = ONE_PERCENT) -> dict[str, Any]:
    """``classes`` and ``options`` of a workflow from `ModelFlags` or `ImageFlags`; ``max_bad`` holds where it is not given."""
    from vitrail.inference.options import InferenceOptions

    images: dict[str, Any] = {}
    if "batch" in flags:
        share = max_bad if flags["max_bad"] is None else flags["max_bad"]
        images = {**{name: flags[name] for name in ("batch", "workers", "quiet")}, "max_bad": part(share)}
    if "zoom" in flags:
        images["zoom"] = flags["zoom"]
    options = InferenceOptions(**parse_weights(flags), device=flags["device"], precision=flags["precision"], **images)
    return {"classes": to_path(flags["classes"]), "options": options}


def parse_weights(flags: Mapping[str, Any]) -> dict[str, Any]:
    """``size`` and ``preprocessing`` of `InferenceOptions` from `WeightsFlags`, and ``size`` where a verb has it too.

    Raises `ConfigError` if both ``size`` and ``crop`` are given.
    """
    size, crop, resize = flags.get("size"), flags["crop"], flags["resize"]
    if size is not None and crop is not None:
        raise ConfigError("--size and --crop are the same, and both are given", "give one of them")
    pixels = crop if size is None else size
    preprocessing: dict[str, Any] = {name: numbers(flags[name]) for name in ("mean", "std") if flags[name] is not None}
    if resize is not None:
        preprocessing["resize"] = int(resize) if str(resize).isdigit() else resize
    return {"size": None if pixels is None else size_in_pixels(pixels), "preprocessing": preprocessing}


def to_path(value: str | Path | None) -> Path | None:
    return None if value is None else Path(value)


def list_inputs(inputs: str | Path | Sequence[str | Path]) -> list[str]:
    return [str(inputs)] if isinstance(inputs, str | Path) else [str(path) for path in inputs]


def choose_cache(cache: bool | str | Path) -> Path | None:
    """The folder where features are kept, None for none."""
    from vitrail.inference.feature_cache import default_cache

    return default_cache() if cache is True else Path(cache) if cache else None
