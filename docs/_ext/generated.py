"""The directive ``generated``: a part of a page that is written from the code whenever the site is built.

    ```{generated} settings
    ```

Each generator is a function without arguments that returns Markdown.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import benchmark_records
import reference_tables
from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

GENERATORS: dict[str, Callable[[], str]] = {
    "benchmarks": benchmark_records.records,
    "command-line": reference_tables.command_line,
    "exit-codes": reference_tables.exit_codes,
    "models": reference_tables.models,
    "recipes": reference_tables.recipes,
    "settings": reference_tables.settings,
    "vtab": reference_tables.vtab,
}


class Generated(SphinxDirective):
    """Parses what a generator returns, headings included."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        (name,) = self.arguments
        if name not in GENERATORS:
            raise self.error(f"there is no generator {name!r}; choose one of {', '.join(sorted(GENERATORS))}")
        text = GENERATORS[name]()
        # MyST would put what stands before the first heading behind all sections
        assert text.startswith("## ") or "\n## " not in text
        return self.parse_text_to_nodes(text, allow_section_headings=True)


def setup(app: Sphinx) -> dict[str, Any]:
    app.add_directive("generated", Generated)
    return {"parallel_read_safe": True}
