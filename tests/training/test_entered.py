"""How much of vitrail a training enters: what somebody who follows it in the code has to read. The limits may only go down."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from itertools import pairwise

FILES, FUNCTIONS = 110, 745  # without torch_private, of which the processor decides what is entered

TRAIN = """
import json, sys, threading
from pathlib import Path
import numpy as np
import vitrail
import matplotlib.figure, PIL.Image, vitrail.training.train, vitrail.verbs.train  # at full speed: imports are left out

root, entered, calls, inside = str(Path(vitrail.__file__).parent), [], {}, threading.local()

def follow(frame, event, argument):
    code = frame.f_code
    if code.co_name == "<module>":  # whatever an import calls is left out
        inside.modules = getattr(inside, "modules", 0) + {"call": 1, "return": -1}.get(event, 0)
    elif event == "call" and code.co_filename.startswith(root) and not getattr(inside, "modules", 0):
        name = f"{code.co_filename[len(root) + 1:]} {code.co_qualname}"
        if not code.co_name.startswith("<"):  # comprehensions are functions in some versions of Python only
            entered.append(name)

images, labels = np.random.default_rng(0).integers(0, 256, (200, 8, 8), np.uint8), np.arange(200) % 10
threading.setprofile(follow)
sys.setprofile(follow)
vitrail.train((images, labels), out=sys.argv[1], steps=2, quiet=True, set=["compute.precision=fp32", "compute.threads=1"])
sys.setprofile(None)
threading.setprofile(None)
print(json.dumps(entered))
"""


def test_a_training_of_two_steps_enters_few_files_and_builds_everything_once(tmp_path):
    done = subprocess.run([sys.executable, "-c", TRAIN, str(tmp_path / "run")], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    entered = [name for name in json.loads(done.stdout.splitlines()[-1]) if not name.startswith("torch_private")]
    calls = Counter(entered)
    files = {name.split()[0] for name in calls}
    rooms = Counter(name.split("/")[0].split()[0] for name in calls)
    changes = sum(one.split("/")[0] != other.split("/")[0] for one, other in pairwise(dict.fromkeys(entered)))
    print(
        f"{len(files)} files, {len(calls)} functions, rooms changed {changes} times; functions by room: {dict(rooms)}"
    )
    assert len(files) <= FILES and len(calls) <= FUNCTIONS, f"{len(files)} files, {len(calls)} functions"
    assert calls["tasks/task.py read_arguments"] == 1
    assert calls["models/family.py create_backbone"] == 2  # once with values, once on the meta device
    assert calls["models/family.py configure"] <= 5
