"""XML from untrusted sources."""

from __future__ import annotations

from xml.etree import ElementTree

from vitrail.untrusted.limits import DEPTH


class _Builder(ElementTree.TreeBuilder):
    def doctype(self, *_: object) -> None:
        """Called where a document type begins, before any entity is declared."""
        raise ValueError("it declares a document type, whose XML entities can expand without limit")


def parse_xml(content: bytes) -> ElementTree.Element:
    """Parses an XML document.

    Raises `ValueError` for anything else, for a document type, in whatever encoding, since it can declare entities that expand
    without limit, and for elements that are nested deeper than `DEPTH`.
    """
    try:
        root = ElementTree.fromstring(content, ElementTree.XMLParser(target=_Builder()))
    except (ElementTree.ParseError, LookupError) as error:  # LookupError: an unknown encoding
        raise ValueError(str(error)) from error
    level = [root]
    for _ in range(DEPTH):
        level = [child for parent in level for child in parent]
    if level:
        raise ValueError(f"it is nested deeper than {DEPTH} levels")
    return root
