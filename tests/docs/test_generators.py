"""What the site writes from the code is complete, and pages lead where they do in the repository."""

from __future__ import annotations

import itertools
import json
import re
import subprocess
import sys
from collections.abc import Iterator

from cyclopts import App

import vitrail
from tests.test_pages import ROOT
from vitrail.cli import build_app
from vitrail.config.recipes import RECIPES
from vitrail.config.schema import list_fields

RECORDS = sorted((ROOT / "benchmarks/records").glob("*.json"))


def verbs(app: App, group: str = "") -> Iterator[tuple[str, App]]:
    for name, each in app.resolved_commands().items():
        if name.startswith("-"):
            continue
        if each.default_command is None:
            yield from verbs(each, f"{group}{name} ")
        else:
            yield group + name, each


def test_every_verb_and_option_of_the_command_line_is_there():
    from reference_tables import command_line

    text = command_line()
    found = dict(verbs(build_app()))
    assert {"train", "data check"} <= found.keys()
    for name, app in found.items():
        section = re.split("\n#+ ", text.partition(f"# vitrail {name}\n")[2])[0]
        (usage,) = re.findall(rf"^vitrail {name}.*", section, re.MULTILINE)
        assert " -m " not in usage
        options = [option for each in app.assemble_argument_collection() for option in each.names]
        assert all(option in section for option in options), name


def test_every_setting_is_there_with_its_meaning():
    from reference_tables import settings

    text = settings()
    assert all(f"| `{key}` | {field.meaning}" in text for key, field in list_fields().items())


def test_every_recipe_has_its_source_and_a_column():
    from reference_tables import recipes

    text = recipes()
    assert all(f"| `{name}` | {recipe.source} |" in text for name, recipe in RECIPES.items())
    assert all(f"| `{name}/{row}` | " in text for name, recipe in RECIPES.items() for row in recipe.rows)
    (row,) = (line for line in text.splitlines() if line.startswith("| `paper-jft/vit-l32` |"))
    assert row.split("|")[2].strip() == "`model.name` vit-l32, `optim.lr` 0.0006"
    heads = [line for line in text.splitlines() if line.startswith("| setting |")]
    assert [name.strip("` ") for head in heads for name in head.split("|")[2:-1]] == list(RECIPES)
    (rate,) = (line for line in text.splitlines() if line.startswith("| `optim.lr` |") and " 0.004 |" in line)
    assert rate.split("|")[2].strip() == f"{RECIPES['small-data'].run.optim.lr:g}"


def test_every_model_and_exit_code_is_there():
    from reference_tables import exit_codes, models

    text = models()
    assert all(f"| `{name}` |" in text for name in vitrail.MODELS)
    codes = [line.split("|")[1].strip() for line in exit_codes().splitlines()[2:]]
    assert codes == ["0", "1", "2", "3", "4", "5", "6", "7", "75", "130"]


def test_every_record_is_shown_with_its_machine_its_commit_and_every_figure():
    from benchmark_records import describe, figure

    assert RECORDS
    left_out = []
    for path in RECORDS:
        record = {"date": path.name[:10], **json.loads(path.read_text())}
        text = describe(record)
        rates = [figure(row) for row in record.get("images_per_second", {}).values()]
        figures = [figure(value) for value in record.values() if isinstance(value, int | float)]
        heading = [record["commit"], record["machine"]["processor"]]
        left_out += [(path.stem, each) for each in heading if each not in text.splitlines()[0]]
        left_out += [(path.stem, each) for each in rates + figures if each not in text]
    assert not left_out


def test_a_figure_is_written_with_what_is_known_of_its_spread():
    from benchmark_records import figure

    assert figure({"median": 113.116, "spread": 1.2123, "rates": [1.0]}) == "113.1 ± 1.2"
    assert figure({"median": 130003.3, "spread": 9917.2}) == "130,003 ± 9,917"
    assert figure([48.17, 47.21, 49.13]) == "48.17 (47.21 to 49.13)"
    assert figure([0, 1, 2]) == "0, 1, 2"
    assert figure(None) == ""


def test_a_comparison_is_by_block_with_the_fastest_of_the_others():
    from benchmark_records import records

    (line,) = (line for line in records().splitlines() if line.startswith("| swin-t-training-fp32-cpu |"))
    (record,) = (json.loads(path.read_text()) for path in RECORDS if "swin-t-training-fp32" in path.name)
    rates = {name: row["rates"] for name, row in record["images_per_second"].items()}
    ratios = sorted(own / its for own, its in zip(rates["vitrail"], rates["timm, fused attention"], strict=True))
    assert line.endswith(f"| timm, fused attention | {ratios[len(ratios) // 2]:.2f} |")


def test_links_out_of_the_pages_lead_to_the_pages_of_the_site():
    from repository_links import retarget

    docs = ROOT / "docs"
    page = docs / "models.md"
    assert retarget("[a](../CHANGELOG.md#x) ![b](../c.png)", page, page) == "[a](project/changelog.md#x) ![b](../c.png)"
    assert retarget("[code](../vitrail/models), [file](../vitrail/files.py)", page, page) == (
        "code, [file](../vitrail/files.py)"
    )
    included = retarget(
        "[a](docs/models.md) [b](https://x.org) [c](#d)", ROOT / "README.md", docs / "project/changelog.md"
    )
    assert included == "[a](../models.md) [b](https://x.org) [c](#d)"


def test_a_tutorial_starts_with_its_files_and_nothing_else(tmp_path):
    from tutorial_files import CHECKPOINT

    for split, name in itertools.product(("train", "val"), ("ants", "bees")):
        (tmp_path / "data/hymenoptera" / split / name).mkdir(parents=True)
        for number in range(70):
            (tmp_path / f"data/hymenoptera/{split}/{name}/{number:02}.jpg").write_text(f"{split} {number}")
        (tmp_path / f"data/hymenoptera/{split}/{name}/0.gif").touch()
    (tmp_path / "data" / CHECKPOINT).touch()
    (tmp_path / "desk").mkdir()
    program = "exec(open(file).read()); print(sorted(name for name in globals() if not name.startswith('__')))"
    said = subprocess.check_output(
        [sys.executable, "-c", f"file = {str(ROOT / 'docs/_ext/tutorial_files.py')!r}; {program}"],
        cwd=tmp_path / "desk",
        env={"VITRAIL_TEST_DATA": str(tmp_path / "data")},
        text=True,
    )
    assert said == "['file']\n"
    assert [path.name for path in (tmp_path / "desk").iterdir()] == [".hub"]
    kept = {path.name: path / "snapshots" / ("0" * 40) for path in (tmp_path / "desk/.hub").iterdir()}
    assert (kept["datasets--delima87--beesvsants"] / "imagefolder/val/bees/50.jpg").read_text() == "val 50"
    weights = kept["models--timm--vit_tiny_patch16_224.augreg_in21k_ft_in1k"]
    assert {path.name for path in weights.iterdir()} == {"model.safetensors", "config.json"}
