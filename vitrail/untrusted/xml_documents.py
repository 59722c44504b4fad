"""XML from strangers."""

from __future__ import annotations

from xml.etree import ElementTree
from xml.parsers import expat

from vitrail.untrusted.limits import DEPTH

CHUNK = 2**16  # bytes that are parsed at a time to find the root


class _AtRoot(Exception):
    """The root element begins."""


def parse_xml(content: bytes) -> ElementTree.Element:
    """Parses an XML document.

    Raises `ValueError` for anything else, for a document type, in whatever encoding, since it can declare entities that expand
    without limit, and for elements that are nested deeper than `DEPTH`.
    """
    try:
        _refuse_document_type(content)
        root = ElementTree.fromstring(content)
    except (expat.ExpatError, ElementTree.ParseError, LookupError) as error:  # LookupError: an unknown encoding
        raise ValueError(str(error)) from error
    level = [root]
    for _ in range(DEPTH):
        level = [child for parent in level for child in parent]
    if level:
        raise ValueError(f"it is nested deeper than {DEPTH} levels")
    return root


def _refuse_document_type(content: bytes) -> None:
    parser = expat.ParserCreate()
    parser.StartDoctypeDeclHandler, parser.StartElementHandler = _refuse, _stop
    try:
        for start in range(0, len(content), CHUNK):
            parser.Parse(content[start : start + CHUNK])
    except _AtRoot:
        return


def _refuse(*_: object) -> None:
    raise ValueError("it declares a document type, whose XML entities can expand without limit")


def _stop(*_: object) -> None:
    raise _AtRoot
