"""What a change costs: each is made on a copy of the package and used, and the files that it edits are a limit.

A dense task edits no file: `tests.tasks.depth` registers one.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.import_graph import PACKAGE

# by file of the package: what is replaced, and by what; a new file replaces ""
Edits = Mapping[str, tuple[tuple[str, str], ...]]

NETWORK = """
from dataclasses import dataclass
from typing import ClassVar

from vitrail.models.vit import ViT, ViTConfig


@dataclass(frozen=True, kw_only=True)
class ParallelConfig(ViTConfig):
    architecture: ClassVar[str] = "parallel"


class Parallel(ViT):
    pass


PARALLELS = {"parallel-ti16": ParallelConfig(width=192, depth=2, heads=3, mlp_width=768)}
"""
ARCHITECTURE: Edits = {
    "models/parallel.py": (("", NETWORK),),
    "models/family.py": (
        ("MODELS: dict", "from vitrail.models.parallel import PARALLELS, Parallel, ParallelConfig\n\nMODELS: dict"),
        ("    **CAITS,\n", "    **CAITS,\n    **PARALLELS,\n"),
        ("    CaiTConfig: CaiT,\n", "    CaiTConfig: CaiT,\n    ParallelConfig: Parallel,\n"),
    ),
    # what `vitrail models` lists without torch
    "models/known.py": (
        (
            "] = {\n",
            '] = {\n    "parallel-ti16": Known(Cost(1_250_728, 265_000_000, 29_805_312, 197), Published(DEIT3)),\n',
        ),
    ),
}
OPERATION: Edits = {
    "data/augment/operations.py": (
        (
            '    "invert": Operation(',
            '    "upside_down": Operation(run=lambda images, _: images.flip(-2)),\n    "invert": Operation(',
        ),
    ),
    "data/augment/policy.py": (("OPERATIONS = (\n", 'OPERATIONS = (\n    "upside_down",\n'),),
}
SETTING: Edits = {
    "config/schema.py": (
        (
            "    log_every: Annotated[int | None,",
            '    note: Annotated[str, "a remark for the log"] = ""\n    log_every: Annotated[int | None,',
        ),
    ),
    "training/train.py": (
        (
            "                if rates := run.optim.rates:\n",
            "                log(f'note     {run.save.note}')\n                if rates := run.optim.rates:\n",
        ),
    ),
}
FACT: Edits = {
    "reports/facts.py": (
        ('    machine: str = ""\n', '    machine: str = ""\n    weather: str = ""\n'),
        (
            '            "Time": ", ".join(filter(None, (took, speed))),\n',
            '            "Time": ", ".join(filter(None, (took, speed))),\n            "Weather": self.weather,\n',
        ),
    ),
    "training/provenance.py": (
        ('        "machine": describe(),\n', '        "machine": describe(),\n        "weather": "cloudy",\n'),
    ),
}
CHANGES = {"architecture": ARCHITECTURE, "operation": OPERATION, "setting": SETTING, "fact of a run": FACT}
MOST = {"architecture": 3, "operation": 2, "setting": 2, "fact of a run": 2}  # files of the product

USE = """
import json, sys
import numpy as np
import vitrail
from pathlib import Path

out = Path(sys.argv[1])
images, labels = np.random.default_rng(0).integers(0, 256, (64, 32, 32, 3), np.uint8), np.arange(64) % 4
settings = ["augment.operations=[upside_down]", "augment.layers=1", "save.note=seen", "save.evaluations=1"]
run = vitrail.train((images, labels), model="parallel-ti16", steps=2, batch=8, out=out, set=settings, device="cpu")
loaded = run.load()
print(json.dumps({
    "file": vitrail.__file__,
    "architecture": loaded.config.architecture,
    "listed": "parallel-ti16" in vitrail.list_models(),
    "meaning": vitrail.list_settings("save.note")["save.note"].meaning,
    "answers": len(loaded.predict(images[:2])),
}))
"""


def make(package: Path, edits: Edits) -> None:
    for name, replacements in edits.items():
        file = package / name
        for old, new in replacements:
            text = file.read_text() if old else ""
            assert text.count(old) == 1 if old else not file.exists(), f"{name}: {old!r}"
            file.write_text(text.replace(old, new) if old else new)


@pytest.mark.slow
def test_an_architecture_an_operation_a_setting_and_a_fact_of_a_run_edit_few_files(tmp_path):
    assert {name: len(edits) for name, edits in CHANGES.items()} == MOST
    copy, run = tmp_path / "vitrail", tmp_path / "run"
    shutil.copytree(PACKAGE, copy, ignore=shutil.ignore_patterns("__pycache__"))
    for edits in CHANGES.values():
        make(copy, edits)
    done = subprocess.run(
        [sys.executable, "-c", USE, str(run)],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    used = json.loads(done.stdout.splitlines()[-1])
    assert Path(used["file"]).parent == copy
    assert (used["architecture"], used["listed"], used["answers"]) == ("parallel", True, 2)
    assert used["meaning"] == "a remark for the log"
    assert "note     seen" in (run / "log.txt").read_text()
    assert "cloudy" in (run / "report.html").read_text()
