"""Tutorials as notebooks: under the title of each stands a link to its .ipynb.

A tutorial is a page of Markdown with ``code-cell`` blocks, which MyST-NB runs. The notebook that is offered has the same words
and code without outputs, made by jupytext, so it is the same whether the tutorial was run or not.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import jupytext
from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx

NOT_RUN = " This page was built without running it: its outputs are missing."


def offer_notebook(app: Sphinx, doctree: nodes.document) -> None:
    """Writes the notebook of a tutorial beside the doctrees, and a link to it under the title."""
    page = Path(app.env.doc2path(app.env.docname))
    source = page.read_text()
    if "```{code-cell}" not in source:
        return
    notebook = Path(app.doctreedir, "notebooks", app.env.docname).with_suffix(".ipynb")
    notebook.parent.mkdir(parents=True, exist_ok=True)
    jupytext.write(jupytext.reads(source, fmt="md:myst"), notebook)
    link = addnodes.download_reference("", "", reftarget="/" + os.path.relpath(notebook, app.srcdir))
    link += nodes.Text("as a Jupyter notebook")
    line = nodes.paragraph("", "", nodes.Text("Download this tutorial "), link, nodes.Text("."), classes=["notebook"])
    if app.config.nb_execution_mode == "off":
        line += nodes.Text(NOT_RUN)
        for block in doctree.findall(nodes.literal_block):
            if block.get("language") == "python":
                block["language"] = "ipython3"  # as a kernel would say: a cell may have commands behind "!"
    title = next(doctree.findall(nodes.title))
    title.parent.insert(title.parent.index(title) + 1, line)


def setup(app: Sphinx) -> dict[str, Any]:
    # before the files that a page offers are collected
    app.connect("doctree-read", offer_notebook, priority=100)
    return {"parallel_read_safe": True}
