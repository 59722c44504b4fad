"""Settings under the names of other tools are answered with their names here, wherever they are given."""

from __future__ import annotations

import re

import pytest

import vitrail
from tests.each_row import each_row
from vitrail.config.compose import compose_run
from vitrail.config.parse import KEYS
from vitrail.errors import ConfigError
from vitrail.models.vit import ViTConfig
from vitrail.verbs.settings import list_settings

NOTES = {
    "num_layers": "model.changes.depth",
    "hidden_size": "model.changes.width",
    "num_heads": "model.changes.heads",
    "mlp_dim": "model.changes.mlp_width",
    "gradient_accumulation_steps": "data.micro_batch",
    "learning_rate": "optim.lr",
    "weight_decay": "optim.weight_decay",
    "warmup_steps": "schedule.warmup_steps",
    "total_steps": "schedule.steps",
}


@each_row("theirs, ours", NOTES.items())
def test_a_foreign_key_is_named_as_it_is_here(theirs, ours, tmp_path):
    answer = re.escape(f"unknown setting '{theirs}'\n  hint: it is called '{ours}' here")
    with pytest.raises(ConfigError, match=answer):
        compose_run(flags={"data": {"source": "digits"}}, settings=[f"{theirs}=1"])
    (tmp_path / "run.yaml").write_text(f"{theirs}: 1\n")
    with pytest.raises(ConfigError, match=answer):
        compose_run(flags={"data": {"source": "digits"}}, config=tmp_path / "run.yaml")
    with pytest.raises(ConfigError, match=f"unknown setting 'compute.{theirs}'\n  hint: it is called '{ours}' here"):
        compose_run(flags={"data": {"source": "digits"}}, settings=[f"compute.{theirs}=1"])


@each_row(
    "keyword, remedy",
    [
        ("learning_rate", "hint: it is called 'lr' here"),
        ("total_steps", "hint: it is called 'steps' here"),
        ("weight_decay", "hint: it is called 'optim.weight_decay' here: set=['optim.weight_decay=VALUE']"),
        ("num_layers", "hint: it is called 'model.changes.depth' here: set=['model.changes.depth=VALUE']"),
    ],
)
def test_a_foreign_keyword_is_named_as_it_is_given_here(keyword, remedy):
    with pytest.raises(ConfigError, match=re.escape(f"there is no option '{keyword}'\n  {remedy}")):
        vitrail.train("digits", **{keyword: 1})


def test_a_function_that_trains_nothing_has_no_settings_to_name():
    with pytest.raises(ConfigError, match="there is no option 'learning_rate'\n  hint: did you mean 'calibrate'"):
        vitrail.evaluate("model", "digits", learning_rate=1)


def test_every_key_that_is_named_exists():
    known = set(list_settings())
    for key in KEYS.values():
        group, _, field = key.rpartition(".")
        assert key in known or (group == "model.changes" and field in ViTConfig.__dataclass_fields__), key
