"""What importing loads: nothing that is not needed, and what is heavy only where it is used."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence

import pytest

from tests.import_graph import PACKAGE, files, module
from tests.slow import slow_except
from tests.test_layout import PEERS

HEAVY = {"torch", "numpy", "PIL", "sklearn", "matplotlib"}
RUN = """
from vitrail.cli import main
try:
    main({words})
except SystemExit as end:
    assert not end.code
"""
DRAW = """
import numpy
model = vitrail.create_model("vit-ti16", classes=2, image_size=32, depth=1)
assert draw(model, numpy.zeros((32, 32, 3), numpy.uint8), 0)._repr_png_()[1:4] == b"PNG"
"""
VERBS = [
    "train",
    "pretrain",
    "evaluate",
    "probe",
    "transfer",
    "predict",
    "explain",
    "inspect",
    "convert",
    "export",
    "serve",
    "settings",
    "study",
]
SHOWS = [
    ["models"],
    ["settings"],
    ["data", "check", "digits"],
    ["study", "write", "digits"],
]  # they answer within a second
LIBRARIES = [
    name
    for file in files(PACKAGE)
    if not (name := ".".join(module(PACKAGE, file)).removesuffix(".__init__")).endswith("__main__")
]
# what a piece of code must not have loaded; a column is run by one interpreter, from the lightest to the heaviest
LIGHT = {
    "without torch": {
        "import vitrail": HEAVY,
        **{RUN.format(words=[*verb, "--help"]): HEAVY for verb in ([], *([verb] for verb in VERBS))},
        **{RUN.format(words=words): {"torch"} for words in SHOWS},
        "import vitrail.config.compose": {"torch"},
        "import vitrail.data.augment.crops": {"torch"},
        "import vitrail.data.sample_order, vitrail.data.workers, vitrail.data.prepare": {"torch"},
        "from vitrail.data.sources.open import open_data; open_data('digits')": {"torch"},
    },
    "with torch": {
        "import vitrail.reports.classification": {"matplotlib", "sklearn"},
        "import vitrail.weights, vitrail.inference.outputs, vitrail.reports.evaluated_run": {
            "onnx",
            "onnxruntime",
            "rich",
            "torch._dynamo",
        },
        "import vitrail; draw = vitrail.visualize_attention": {"matplotlib"},
        DRAW: {"matplotlib.pyplot"},
        f"import importlib\nfor name in {LIBRARIES}: importlib.import_module(name)": PEERS,
    },
}


def modules_after(stages: Sequence[str]) -> list[set[str]]:
    """All modules that a fresh interpreter holds after each of these pieces of code, run one after another."""
    code = f"""
import contextlib, io, sys
names, held = {{}}, []
for stage in {list(stages)!r}:
    with contextlib.redirect_stdout(io.StringIO()):
        exec(stage, names)
    held.append(" ".join(sys.modules))
print(*held, sep="\\n")
"""
    lines = subprocess.check_output([sys.executable, "-W", "error", "-c", code], text=True).splitlines()
    return [set(line.split()) for line in lines]


@pytest.mark.parametrize("column", slow_except(LIGHT, {"without torch"}))
def test_importing_loads_only_what_is_needed(column):
    stages = LIGHT[column]
    held = modules_after(list(stages))
    assert "vitrail" in held[0]
    assert {"cyclopts", "torch"} & held[-1]
    too_much = {code: heavy & names for (code, heavy), names in zip(stages.items(), held, strict=True)}
    assert not any(too_much.values()), {code: names for code, names in too_much.items() if names}
