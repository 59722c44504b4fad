"""JSON from untrusted sources."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

from vitrail.untrusted.limits import DEPTH, DIGITS


def parse_json(content: bytes | str, *, unique: bool = False) -> Any:
    r"""Parses JSON, text or its bytes in UTF-8, with or without a byte order mark.

    With ``unique`` a key that appears twice in an object is refused: parsers disagree about its value.

    Raises:
        ValueError: the content is not JSON in UTF-8, is nested deeper than `DEPTH`, has a whole number of more than `DIGITS`
            digits, or a lone surrogate in a string, as in ``"\ud800"``: JSON can express it, but no file name, HTTP reply or
            database accepts it.
    """
    text = content if isinstance(content, str) else content.decode("utf-8-sig")
    try:
        value = json.loads(text, parse_int=_parse_whole, object_pairs_hook=_refuse_twins if unique else None)
    except RecursionError:
        raise ValueError(f"it is nested deeper than {DEPTH} levels") from None
    level = [value] if isinstance(value, dict | list) else []
    for _ in range(DEPTH):
        children = (child for parent in level for child in (parent.values() if isinstance(parent, dict) else parent))
        level = [child for child in children if isinstance(child, dict | list)]
    if level:
        raise ValueError(f"it is nested deeper than {DEPTH} levels")
    if "\\ud" in text or "\\uD" in text:
        check_unicode(value)
    return value


def check_unicode(value: Any) -> None:
    """Raises `ValueError` for a lone surrogate in a string of a document of JSON or YAML."""
    try:
        json.dumps(value, ensure_ascii=False, default=str).encode()
    except UnicodeEncodeError as error:
        raise ValueError("a string has a lone surrogate, which is no Unicode text") from error


def _parse_whole(digits: str) -> int:
    if len(digits) > DIGITS:
        raise ValueError(f"a whole number has {len(digits):,} digits, at most {DIGITS} are read")
    return int(digits)


def _refuse_twins(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    content = dict(pairs)
    if len(content) < len(pairs):
        twice = next(name for name, count in Counter(name for name, _ in pairs).items() if count > 1)
        raise ValueError(f"{twice[:80]!r} appears twice")
    return content
