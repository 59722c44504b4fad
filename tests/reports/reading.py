"""What a browser would see of a page."""

from __future__ import annotations

from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

PAYLOAD = "\"'><script>alert(1)</script><img src=x onerror=alert(2)>&lt; var(--nothing) </style></title>"
VOID = {"meta", "link", "img", "br"}


class Page(HTMLParser):
    """What a browser would see: elements with their attributes, the text, and whether every element is closed."""

    def __init__(self, source: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.scripts: list[str] = []
        self.words = ""
        self.feed(source)
        assert not self.open, f"left open: {self.open}"
        self.said = " ".join(self.words.replace("\u202f", " ").split())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        self.open += [] if tag in VOID else [tag]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open[-1:] == ["script"]:
            self.scripts.append(data)
        elif self.open[-1:] != ["style"]:
            self.words += data + " "

    def all(self, name: str) -> list[dict[str, str | None]]:
        return [attributes for tag, attributes in self.elements if tag == name]

    @property
    def sections(self) -> list[str | None]:
        return [each["id"] for each in self.all("section")]


def read_report(path: Path) -> Page:
    """The page of a report whose drawings are whole XML."""
    assert path.name == "report.html"
    for drawing in (path.parent / "plots").iterdir():
        ElementTree.parse(drawing)
    return Page(path.read_text("utf-8"))
