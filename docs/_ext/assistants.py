"""For assistants: ``llms.txt`` lists the pages with a sentence on each, as llmstxt.org has it, and the commands.

Each page also lies beside its HTML as Markdown, with what is generated and included; ``llms-full.txt`` is all of them.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from pydoc import locate
from typing import Any

from cyclopts import App
from docutils import nodes
from generated import GENERATORS
from repository_links import retarget
from sphinx import addnodes
from sphinx.application import Sphinx

from vitrail.cli import build_app

DIRECTIVE = re.compile(r"^```\{(generated|include|toctree|eval-rst)\} ?(.*)\n((?:.*\n)*?)```\n", re.MULTILINE)
DOCUMENTED = re.compile(r"^\.\. auto\w+:: (\S+)", re.MULTILINE)
FRONT_MATTER = re.compile(r"\A---\n(?:.*\n)*?---\n\n?")


def list_pages(app: Sphinx, page: str) -> Iterator[tuple[str, str]]:
    """Each page below one, in the order of the site, with the caption of its list."""
    for toctree in app.env.get_doctree(page).findall(addnodes.toctree):
        for _, name in toctree["entries"]:
            caption = toctree["caption"] or "Start"
            yield caption, name
            yield from ((caption, below) for _, below in list_pages(app, name))


def list_commands(app: App, group: str = "vitrail") -> Iterator[tuple[str, str]]:
    """Each command with its summary."""
    for name, each in app.resolved_commands().items():
        if not name.startswith("-"):
            yield f"{group} {name}", each.help
            yield from list_commands(each, f"{group} {name}")


def first_sentence(text: str) -> str:
    return re.split(r"(?<=[.!?])(?<!et al\.)\s", " ".join(text.split()), maxsplit=1)[0].rstrip(":")


def to_markdown(app: Sphinx, page: str) -> str:
    """The Markdown of a page, with what its directives write."""
    path = Path(app.env.doc2path(page))

    def expand(found: re.Match[str]) -> str:
        kind, name, lines = found.groups()
        if kind == "include":
            source = (path.parent / name).resolve()
            return retarget(source.read_text(), source, path)
        return GENERATORS[name]() + "\n" if kind == "generated" else "".join(map(describe, DOCUMENTED.findall(lines)))

    text = FRONT_MATTER.sub("", retarget(path.read_text(), path, path))
    return DIRECTIVE.sub(expand, text).replace("```{code-cell} ipython3", "```python")


def describe(name: str) -> str:
    """A function, class or module of the API: its name and docstring."""
    return f"### `{name}`\n\n{inspect.getdoc(locate(name)) or ''}\n\n"


def write_files(app: Sphinx, error: Exception | None) -> None:
    if error is not None or app.builder.name != "html":
        return
    pages = [("Start", "index"), *list_pages(app, "index")]
    texts = {page: to_markdown(app, page) for _, page in pages}
    for page, text in texts.items():
        Path(app.outdir, f"{page}.md").write_text(text)
    whole = "\n\n".join(texts.values())
    Path(app.outdir, "llms-full.txt").write_text(whole)
    summary = next(app.env.get_doctree("index").findall(nodes.paragraph)).astext()
    lines = ["# vitrail", "", f"> {' '.join(summary.split())}"]
    for caption, members in groupby(pages, key=itemgetter(0)):
        lines += ["", f"## {caption}", ""]
        for _, page in members:
            about = next((each.astext() for each in app.env.get_doctree(page).findall(is_prose)), "")
            lines.append(f"- [{app.env.titles[page].astext()}]({page}.md): {first_sentence(about)}")
    lines += ["", "## Commands", ""]
    for name, help in list_commands(build_app()):
        lines.append(f"- [{name}](reference/command-line.md#{name.replace(' ', '-')}): {first_sentence(help)}")
    lines += ["", "## Optional", "", f"- [All pages](llms-full.txt): {len(whole) / 1e6:.1f} MB of Markdown."]
    Path(app.outdir, "llms.txt").write_text("\n".join(lines) + "\n")


def is_prose(node: nodes.Node) -> bool:
    """Whether a node is a paragraph of a section, not of a table, a list or a notebook's link."""
    is_text = isinstance(node, nodes.paragraph) and isinstance(node.parent, nodes.section)
    return is_text and "notebook" not in node["classes"]


def setup(app: Sphinx) -> dict[str, Any]:
    app.connect("build-finished", write_files)
    return {"parallel_read_safe": True}
