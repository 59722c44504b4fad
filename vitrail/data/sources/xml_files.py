"""XML files of annotations, parsed without entities, which can expand without limit."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

from vitrail.data.decode import BadImage
from vitrail.data.sources.contents import read_file
from vitrail.errors import DataError


def parse_xml(path: Path) -> ElementTree.Element:
    """The root element. Raises `DataError` for a file that cannot be parsed or declares entities."""
    try:
        content = read_file(path)
    except BadImage as error:
        raise DataError(f"{path} cannot be read: {error.reason}", "check the file") from error
    if b"<!DOCTYPE" in content or b"<!ENTITY" in content:
        raise DataError(f"{path} declares XML entities, which can expand without limit", "remove the declaration")
    try:
        return ElementTree.fromstring(content)
    except ElementTree.ParseError as error:
        raise DataError(f"{path} cannot be read: {error}", "export the annotations again") from error
