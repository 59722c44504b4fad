"""The model card: what a reader and a model hub find in it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from vitrail.errors import DiskError
from vitrail.reports.cards import classification_card as card
from vitrail.reports.cards import escape, write_card
from vitrail.reports.facts import EvaluatedRun

FIGURES = {"top1": 0.95, "top1_low": 0.92, "top1_high": 0.98, "nll": 0.14}


def run(
    *,
    classes: Sequence[str] = ("ant", "bee"),
    figures: Mapping[str, float] = FIGURES,
    split: str = "val",
    multi_label: bool = False,
    **more: object,
) -> EvaluatedRun:
    facts = {
        "title": "bees", "model": "vit-ti16", "parameters": 5_717_416, "image_size": (224, 192),
        "images": {"train": 245, "val": 153},
        "preprocessing": {"size": (224, 192), "mean": (0.5, 0.5, 0.5)}, "recipe": "finetune", "data": "photographs",
        "provenance": {"seed": 3, "place": Path("runs"), "versions": {"torch": "2.13.0"}},
    }  # fmt: skip
    result: Any = SimpleNamespace(classes=classes, figures=figures, split=split)
    model: Any = SimpleNamespace(multi_label=multi_label)
    return EvaluatedRun(facts={**facts, **more}, model=model, splits={}, source=model, result=result)


def section(text: str, title: str) -> str:
    found = re.search(rf"^## {re.escape(title)}\n\n(.*?)(?=\n\n## |\Z)", text, re.DOTALL | re.MULTILINE)
    assert found is not None, title
    return found[1].replace("\u202f", "").strip()


def test_a_card_says_what_it_is_in_the_folder_given(tmp_path):
    path = write_card(tmp_path / "new", card(run()))
    assert path == tmp_path / "new/card.md"
    text = path.read_text("utf-8").replace("\u202f", "")
    assert "# bees\n\nAn image classifier with 2 classes (vit-ti16, 5.72M parameters, images of" in text
    assert "224 × 192 pixels)" in text
    assert "The model was trained from scratch." in text
    assert section(text, "Classes") == "ant, bee."


def test_the_front_matter_is_yaml_that_a_hub_reads():
    found = yaml.safe_load(card(run()).split("---\n")[1])
    assert found["license"] == "unknown"
    assert found["pipeline_tag"] == "image-classification"
    assert yaml.safe_load(card(run(license="cc-by-4.0")).split("---\n")[1])["license"] == "cc-by-4.0"


def test_figures_stand_in_a_table_with_the_interval_and_the_images_they_were_measured_on():
    found = section(card(run()), "Evaluation")
    assert "`val` (153 images)" in found
    assert "| top-1 accuracy | 95.0% | 92.0% to 98.0% |" in found
    assert "| negative log-likelihood | 0.140 |  |" in found
    assert "Brier" not in found


def test_figures_of_the_training_images_come_with_a_warning():
    assert "trained on these images" in section(card(run(split="train")), "Evaluation")


def test_the_python_lines_compile_wherever_the_model_lies():
    found = section(card(run(location='it\'s "here"/runs')), "Usage")
    lines = re.search(r"```python\n(.*?)\n```", found, re.DOTALL)
    assert lines is not None
    assert 'it\'s "here"/runs' in compile(lines[1], "card", "exec").co_consts


def test_settings_on_a_card_can_be_read_back():
    found = section(card(run()), "Preprocessing")
    assert yaml.safe_load(found.strip("`").removeprefix("yaml")) == {"size": [224, 192], "mean": [0.5, 0.5, 0.5]}
    assert "seed: 3\nplace: runs\n" in section(card(run()), "Provenance")


def test_the_licence_of_the_weights_it_started_from_is_unknown_unless_given():
    assert "Initial weights" not in section(card(run()), "Licence")
    assert section(card(run(base="base.npz")), "Licence").endswith("Initial weights (base.npz): unknown.")
    found = section(card(run(base="base.npz", base_license="Apache-2.0", license="MIT")), "Licence")
    assert found == "This model: MIT. Initial weights (base.npz): Apache-2.0."


def test_only_a_single_label_model_always_answers():
    title = "Limitations"
    assert "always predicts one of its classes" in section(card(run()), title)
    several = card(run(multi_label=True, figures={"map": 0.5}))
    assert "always predicts" not in section(several, title)
    assert "| mean average precision | 50.0% |" in section(several, "Evaluation")


def test_many_classes_are_cut_and_counted():
    found = section(card(run(classes=[f"class{index}" for index in range(1000)])), "Classes")
    assert found.endswith("class99 … and 900 more; `model/config.json` has all of them.")


def test_text_from_the_data_is_neither_markdown_nor_html():
    assert escape("a|b_*[x](y)\n# <b>&`\udcff") == r"a\|b\_\*\[x\](y) \# &lt;b&gt;&amp;\`" + "\ufffd"
    text = card(run(classes=["<script>", "two\n\n## Licence"], provenance={"key": "``` <b> ````"}))
    assert "<script>" not in text
    assert text.count("\n## Licence\n") == 1
    assert "`````yaml\nkey: '``` <b> ````'\n`````" in text


def test_a_folder_that_cannot_be_written_is_a_disk_error(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(DiskError, match="could not be written"):
        write_card(tmp_path / "file", "")


def test_a_card_names_no_folder_of_the_machine():
    text = card(run(data="/home/me/photos", base="/home/me/weights/base.npz"))
    assert "/home/me" not in text
    assert "Source: photos." in text and "base.npz" in text
    assert "Source: hf:owner/photos." in card(run(data="hf:owner/photos"))
