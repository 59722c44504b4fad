"""Docstrings on the site: in single backticks a documented name becomes a link, everything else is set as code.

Docstrings say `ConfigError`, `vitrail.load` or `--set optim.clip=1` alike, so that they are easy to read where they are
written. Annotations name the types of other modules alike.
"""

from __future__ import annotations

import inspect
import re
from typing import Any

from docutils import nodes
from docutils.parsers.rst import roles
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.util.nodes import make_refnode

HIDDEN = "\N{RATIO} "  # in place of a colon, while napoleon reads


def backticks(
    name: str, rawtext: str, text: str, lineno: int, inliner: Any, options: Any = None, content: Any = ()
) -> Any:
    """The default role: a reference that may lead nowhere."""
    code = nodes.literal(rawtext, text, classes=["xref", "py"])
    if not re.fullmatch(r"[A-Za-z_][\w.]*", text):
        return [nodes.literal(rawtext, text)], []
    env = inliner.document.settings.env
    reference = addnodes.pending_xref(
        rawtext, code, refdomain="py", reftype="obj", reftarget=text, refdoc=env.docname, optional=True
    )
    return [reference], []


def resolve(app: Sphinx, env: Any, node: addnodes.pending_xref, content: nodes.Element) -> nodes.Node | None:
    """The documented object that a bare name means: a public name, or the only class or type that is called so."""
    if node.get("refdomain") != "py":
        return None
    target, objects = node["reftarget"], env.domains.python_domain.objects
    found = [name for name in (target, f"vitrail.{target}") if name in objects]
    found += [
        name
        for name, entry in objects.items()
        if name.rpartition(".")[2] == target and entry.objtype in {"class", "exception", "type"} and not entry.aliased
    ]
    if not found:
        return nodes.literal(content.rawsource, content.astext()) if node.get("optional") else None
    entry = objects[found[0]]
    return make_refnode(app.builder, node["refdoc"], entry.docname, entry.node_id, content, found[0])


def show_defaults(app: Sphinx, what: str, name: str, obj: Any, options: Any, args: str, returns: str) -> Any:
    """A default that is a function is shown by its name; one that is made anew, as a field of a dataclass, as dots.

    Of a verb with main options these stand for all, which the list of parameters has.
    """
    if main := getattr(inspect.unwrap(obj), "main", ()) if callable(obj) else ():
        parameters = [each for each in inspect.signature(obj).parameters.values()]
        shown = [each for each in parameters if each.kind is not each.KEYWORD_ONLY or each.name in main]
        more = inspect.Parameter("options", inspect.Parameter.VAR_KEYWORD)
        return str(inspect.Signature([*(each.replace(annotation=each.empty) for each in shown), more])), returns
    return args and re.sub(r"<function (\w+)[^>]*>", r"\1", args).replace("<factory>", "..."), returns


def add_types(app: Sphinx, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Gives the parameters of a verb their types, which its short signature does not show."""
    if what != "function" or not getattr(inspect.unwrap(obj), "main", ()):
        return
    parameters = inspect.signature(obj).parameters
    for place, line in enumerate(lines):
        if (found := re.match(r"    (\w+): ", line)) and found[1] in parameters:
            kind = parameters[found[1]].annotation
            kind = kind if isinstance(kind, str) else inspect.formatannotation(kind).replace("typing.", "")
            lines[place] = f"    {found[1]} ({kind}): {line[found.end() :]}"


def hide_colon(app: Sphinx, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Napoleon takes what stands before the first colon of a property for its type: it gets to see none."""
    if what in {"attribute", "property"} and lines:
        lines[0] = lines[0].replace(": ", HIDDEN)


def show_colon(app: Sphinx, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    lines[:] = [line.replace(HIDDEN, ": ") for line in lines]


def draw_dashes(app: Sphinx, doctree: nodes.document) -> None:
    """A parameter and its meaning are divided by " -- ", which only smart quotes would draw as a dash."""
    for text in list(doctree.findall(nodes.Text)):
        if text == " -- ":
            text.parent.replace(text, nodes.Text(" – "))


def setup(app: Sphinx) -> dict[str, Any]:
    roles.register_local_role("backticks", backticks)
    app.connect("missing-reference", resolve)
    app.connect("autodoc-process-docstring", add_types, priority=90)
    app.connect("autodoc-process-docstring", hide_colon, priority=100)
    app.connect("autodoc-process-docstring", show_colon, priority=900)
    app.connect("doctree-read", draw_dashes)
    app.connect("autodoc-process-signature", show_defaults)
    return {"parallel_read_safe": True}
