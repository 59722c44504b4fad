"""Reads the JSON and XML files of annotation tools, whose faults are errors that name the file."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from vitrail.data.sources.contents import read_file
from vitrail.errors import DataError
from vitrail.images.decode import BadImage
from vitrail.untrusted.json_documents import parse_json
from vitrail.untrusted.xml_documents import parse_xml

REMEDY = "export the annotations again"


def has_keys(path: Path, keys: Iterable[str]) -> bool:
    """Whether all these keys stand in a JSON file, which is not parsed; False for a file that cannot be read."""
    try:
        content = read_file(path)
    except BadImage:
        return False
    return all(f'"{key}"'.encode() in content for key in keys)


def read_json(path: Path) -> Any:
    """Reads a JSON file. Raises `DataError` for one that cannot be read or parsed."""
    try:
        return parse_json(read_file(path))
    except BadImage as error:
        raise DataError(f"{path} cannot be read: {error.reason}", "check the file") from error
    except ValueError as error:
        raise DataError(f"{path} is no valid JSON: {error}", REMEDY) from error


def read_xml(path: Path) -> ElementTree.Element:
    """Reads the root element of an XML file. Raises `DataError` for one that cannot be read, or that `parse_xml` refuses."""
    try:
        return parse_xml(read_file(path))
    except BadImage as error:
        raise DataError(f"{path} cannot be read: {error.reason}", "check the file") from error
    except ValueError as error:
        raise DataError(f"{path} cannot be read: {error}", REMEDY) from error
