"""Links between the pages and the repository around them.

On GitHub a page may link to any file: ``../CHANGELOG.md``, ``../vitrail/models``. On the site, files that have a page of their
own lead there, other files are offered as they are, and folders are named without a link, as is the log of decisions.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sphinx.application import Sphinx

DOCS = Path(__file__).parent.parent
ROOT = DOCS.parent
DECISIONS = DOCS / "decisions.md"  # in order of time, for whoever changes vitrail; the site has what stands now
PAGES = {
    ROOT / "README.md": DOCS / "index.md",
    ROOT / "CHANGELOG.md": DOCS / "project/changelog.md",
    ROOT / "CONTRIBUTING.md": DOCS / "project/contributing.md",
    ROOT / "benchmarks/README.md": DOCS / "benchmarks.md",
    ROOT / "benchmarks/records": DOCS / "benchmarks.md",
}
LINK = re.compile(r"(?<!!)\[(?P<words>[^\]]*)\]\((?P<path>[^)#\s:]+)(?P<anchor>#[^)\s]*)?\)")


def retarget(text: str, written: Path, shown: Path) -> str:
    """The Markdown of the file ``written`` with its links as the page ``shown`` needs them; both are paths in the repository."""

    def change(link: re.Match[str]) -> str:
        target = Path(os.path.normpath(written.parent / link["path"]))
        if (target.is_dir() and target not in PAGES) or target == DECISIONS:
            return link["words"]
        path = os.path.relpath(PAGES.get(target, target), shown.parent)
        return f"[{link['words']}]({path}{link['anchor'] or ''})"

    return LINK.sub(change, text)


def read_page(app: Sphinx, docname: str, source: list[str]) -> None:
    page = Path(app.env.doc2path(docname))
    source[0] = retarget(source[0], page, page)


def read_included(app: Sphinx, path: Path, docname: str, source: list[str]) -> None:
    source[0] = retarget(source[0], Path(os.path.normpath(DOCS / path)), Path(app.env.doc2path(app.env.docname)))


def setup(app: Sphinx) -> dict[str, Any]:
    app.connect("source-read", read_page)
    app.connect("include-read", read_included)
    return {"parallel_read_safe": True}
