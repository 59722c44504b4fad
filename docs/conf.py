"""How Sphinx builds the site: `make site`. What is generated from the code stands in docs/_ext."""

from __future__ import annotations

import os
import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE / "_ext"))

project = "vitrail"
author = "the vitrail authors"
smartquotes = False  # they would make a dash of --init
extensions = [
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "myst_nb",
    "sphinx_copybutton",
    "sphinx_design",
    # ours
    "assistants",
    "docstrings",
    "generated",
    "notebooks",
    "repository_links",
]
exclude_patterns = ["_build", "_ext", "decisions.md"]

# pages: plain Markdown, whose headings are anchors as on GitHub
myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 4

# docstrings
python_maximum_signature_line_length = 80
default_role = "backticks"  # docs/_ext/docstrings.py
autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
napoleon_use_rtype = False
toc_object_entries_show_parents = "hide"
nitpick_ignore = [  # type variables
    ("py:class", "vitrail.inference.results.Result"),
    ("py:class", "vitrail.runtime.distributed.Value"),
]
# -n reports every name that leads nowhere; names of other projects would need their inventories, hence a network
nitpick_ignore_regex = [
    ("py:.*", r"(torch|numpy|np|PIL|pandas|polars|collections|typing|pathlib|argparse|enum|matplotlib|os|types)\..*"),
    (
        "py:class",
        r"(Any|Callable|Iterable|Iterator|Mapping|Sequence|Path|Tensor|NDArray|Generator|PathLike|Generic|Image)",
    ),
]

# tutorials run where there is real data, each in a new folder that `tutorial_files` fills when its kernel starts
has_data = Path(os.environ.get("VITRAIL_TEST_DATA") or "nowhere").is_dir()
nb_execution_mode = "force" if has_data else "off"
nb_execution_in_temp = True
nb_execution_show_tb = True  # a cell that fails is a warning, which -W makes an error; raised, it would not be shown
nb_execution_timeout = 300
nb_merge_streams = True
if has_data:
    os.environ["VITRAIL_TEST_DATA"] = str(Path(os.environ["VITRAIL_TEST_DATA"]).resolve())
    os.environ["PYTHONSTARTUP"] = str(HERE / "_ext/tutorial_files.py")
    os.environ["OMP_NUM_THREADS"] = "1"  # the same output on any number of cores, and the least time of all of them
    os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])

# the site loads nothing from elsewhere, and can be read from a disk
html_theme = "furo"
pygments_dark_style = "github-dark"
html_title = "vitrail"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_js_files = ["search.js"]
html_copy_source = False
html_show_copyright = False
html_show_sphinx = False
copybutton_prompt_text = r"\$ |>>> "
copybutton_prompt_is_regexp = True
