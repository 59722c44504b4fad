"""Parses durations, fractions, image sizes and lists of numbers from strings."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from vitrail.errors import ConfigError


def largest_divisor(number: int, most: int) -> int:
    """Returns the largest divisor of ``number`` that is at most ``most``, and at least 1."""
    return next(size for size in range(max(min(number, most), 1), 0, -1) if number % size == 0)


def seconds(text: str | float) -> float:
    """``"90"``, ``"90s"``, ``"10m"``, ``"1h30m"`` as seconds."""
    if isinstance(text, (int, float)):
        return float(text)
    match = re.fullmatch(r"(?:(\d+(?:\.\d+)?)h)?(?:(\d+(?:\.\d+)?)m)?(?:(\d+(?:\.\d+)?)s?)?", text.strip())
    if not text.strip() or match is None:
        raise ConfigError(f"{text!r} is not a length of time", "write 45s, 10m or 1h30m")
    hours, minutes, rest = (float(part or 0) for part in match.groups())
    return 3600 * hours + 60 * minutes + rest


def parse_fraction(text: str | float) -> float:
    """``"1%"`` or ``0.01`` as a fraction."""
    try:
        return float(text[:-1]) / 100 if isinstance(text, str) and text.endswith("%") else float(text)
    except ValueError:
        raise ConfigError(f"{text!r} is not a part of a whole", "write 1% or 0.01") from None


def parse_share(text: str, what: str) -> tuple[int, int]:
    """``"3/8"`` as (3, 8), counted from 0; ``what`` names the option. Raises `ConfigError`."""
    match = re.fullmatch(r"(\d+)/(\d+)", text.strip())
    if match is None or not int(match[1]) < int(match[2]):
        raise ConfigError(f"{what} is {text!r}", "count from 0, as 0/8 to 7/8 for eight")
    return int(match[1]), int(match[2])


def parse_fold(text: str) -> tuple[int, int] | None:
    """``"0/5"`` as (0, 5), and ``"all"``, of which nothing is held out, as None. Raises `ConfigError`."""
    if text == "all":
        return None
    part, parts = parse_share(text, "data.fold")
    if parts < 2:
        raise ConfigError(f"data.fold is {text!r}", "divide by 2 or more, or write all")
    return part, parts


def columns_of_table(text: str | Mapping[str, str]) -> dict[str, str]:
    """``"path=file,label=breed"``, or a mapping, as a dict. Raises `ConfigError` for anything else."""
    if isinstance(text, Mapping):
        return dict(text)
    pairs = [part.partition("=") for part in split_commas(text)]
    if not all(kind.strip() and name.strip() for kind, _, name in pairs):
        raise ConfigError(f"columns is {text!r}", "write path=NAME,label=NAME,split=NAME, or those of them that differ")
    return {kind.strip(): name.strip() for kind, _, name in pairs}


def weights_of_classes(text: str | Mapping[str, float]) -> str | dict[str, float]:
    """``"rare=5,other=2"``, or a mapping, as a dict; ``auto`` and ``none`` stay. Raises `ConfigError` for anything else."""
    if isinstance(text, Mapping):
        return {str(name): weight for name, weight in text.items()}
    if text in ("auto", "none"):
        return text
    pairs = [part.rpartition("=") for part in split_commas(str(text))]
    try:
        weights = {name.strip(): float(weight) for name, _, weight in pairs}
    except ValueError:
        weights = {}
    if not all(weights) or len(weights) < len(pairs):
        raise ConfigError(f"class_weights is {text!r}", "write auto, none, or rare=5,other=2, each class once")
    return weights


def numbers(text: str | Sequence[float]) -> tuple[float, ...]:
    """``"0.485, 0.456, 0.406"``, or a list of numbers, as floats."""
    try:
        return tuple(map(float, split_commas(text)))
    except ValueError:
        raise ConfigError(f"{text!r} are not numbers", "write them with commas between: 0.485,0.456,0.406") from None


def whole_numbers(text: str | Sequence[int]) -> tuple[int, ...]:
    """``"1,5,10"``, or a list of numbers, as integers."""
    try:
        return tuple(map(int, split_commas(text)))
    except ValueError:
        raise ConfigError(f"{text!r} are not whole numbers", "write them with commas between: 1,5,10,25") from None


def split_commas(text: str | Sequence[Any]) -> Sequence[Any]:
    """``"knn, linear"`` as a list of strings; a list is returned as it is."""
    return [word.strip() for word in text.split(",")] if isinstance(text, str) else text


def grid_of_patches(text: str | Sequence[int]) -> tuple[int, int]:
    """``"4x9"`` or ``[4, 9]`` (rows x columns) as two numbers."""
    if not isinstance(text, str):
        text = "x".join(map(str, text)) if isinstance(text, Sequence) else str(text)
    match = re.fullmatch(r"([1-9]\d{0,5})x([1-9]\d{0,5})", text.strip(), re.ASCII)
    if match is None:
        raise ConfigError(f"{text!r} is not a grid of patches", "give rows and columns, as 4x9")
    return int(match[1]), int(match[2])


def size_in_pixels(text: str | int | Sequence[int]) -> tuple[int, int]:
    """``384``, ``"384x256"`` or ``[384, 256]`` (height, width) as two numbers."""
    if isinstance(text, Sequence) and not isinstance(text, str):
        text = "x".join(map(str, text))
    match = re.fullmatch(r"(\d+)(?:x(\d+))?", str(text).strip())
    if match is None:
        raise ConfigError(f"{text!r} is not a size", "give pixels, as 384 or 384x256 (height x width)")
    return int(match[1]), int(match[2] or match[1])
