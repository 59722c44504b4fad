"""XML files of annotations."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

from vitrail.data.sources.contents import read_file
from vitrail.errors import DataError
from vitrail.images.decode import BadImage
from vitrail.untrusted.xml_documents import parse_xml


def read_xml(path: Path) -> ElementTree.Element:
    """The root element. Raises `DataError` for a file that `parse_xml` refuses."""
    try:
        return parse_xml(read_file(path))
    except BadImage as error:
        raise DataError(f"{path} cannot be read: {error.reason}", "check the file") from error
    except ValueError as error:
        raise DataError(f"{path} cannot be read: {error}", "export the annotations again") from error
