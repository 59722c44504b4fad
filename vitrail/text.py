"""Formats numbers and names for people: percentages, large counts, plurals, lists of names."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

THIN = "\u202f"  # narrow no-break space between a number and its unit
FORMULA = ("=", "+", "-", "@", "\t", "\r", "'")  # first characters


def printable(text: object, most: int = 80) -> str:
    """Returns untrusted text as one short line without control characters, for a message."""
    line = " ".join(str(text)[: 4 * most].split())
    shown = "".join(letter if letter.isprintable() else "?" for letter in line[:most])
    return shown if len(line) <= most else f"{shown}..."


def number(value: Any) -> float:
    """Returns a number of a JSON file as a float, NaN for null, text and other types."""
    return float(value) if isinstance(value, int | float) else math.nan


def percent(share: float, digits: int = 1) -> str:
    """Formats a fraction as a percentage. NaN is a dash; only exactly 0 and 1 are shown as 0 and 100."""
    if not math.isfinite(share):
        return "–"
    if share in (0, 1):
        return f"{share * 100:.0f}{THIN}%"
    least = 10**-digits
    shown = min(max(share * 100, least), 100 - least) if 0 < share < 1 else share * 100
    return f"{shown:.{digits}f}{THIN}%"


def decimal(value: float, digits: int = 3) -> str:
    """Formats a decimal number. NaN is a dash."""
    return f"{value:.{digits}f}" if math.isfinite(value) else "–"


def large(value: float, unit: str = "") -> str:
    """Formats with three significant digits and an SI prefix: 5717416 -> "5.72 M"."""
    power = min(max(int(math.log10(max(abs(value), 1)) // 3), 0), 7)
    shown = f"{value / 1000**power:.3g}" if power else f"{value:,.0f}"
    return f"{shown}{THIN}{['', 'k', 'M', 'G', 'T', 'P', 'E', 'Z'][power]}{unit}".rstrip(THIN)


def whole(value: float) -> str:
    """Formats a count, from 10,000 on with an SI prefix: "1,200", "50 k"."""
    return f"{value:,.0f}" if abs(value) < 10_000 else large(value)


def scientific(value: float) -> str:
    """Formats with three significant digits and a short exponent: "3e-4"."""
    if not value or not math.isfinite(value):
        return decimal(value, 0)
    power = math.floor(math.log10(abs(value)) + 1e-9)
    return f"{value / 10.0**power:.3g}e{power}"


def plural(count: int, noun: str, nouns: str = "") -> str:
    """Formats a count with its noun: "1 image", "1,797 images", "0 classes"."""
    return f"{count:,} {noun if count == 1 else nouns or noun + 's'}"


def listing(names: Sequence[str], most: int = 12) -> str:
    """Joins names with commas, truncated after ``most`` of them."""
    more = f" … and {len(names) - most:,} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def shorten(name: str, most: int) -> str:
    """Truncates to at most ``most`` characters, with an ellipsis."""
    return name if len(name) <= most else name[: most - 1] + "…"


def sentence(words: str) -> str:
    """Capitalises the first letter."""
    return words[:1].upper() + words[1:]


def escape_formula(text: str) -> str:
    """Puts an apostrophe before a text that a spreadsheet could take for a formula."""
    return f"'{text}" if text.startswith(FORMULA) else text
