"""Settings from words: YAML, --set, types, and errors that name the nearest key."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

import pytest

from tests.each_row import each_row
from vitrail.config.parse import assignment, build, flatten, overlay, plain, read_yaml
from vitrail.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class Inner:
    rate: float = 0.1
    clip: float | None = None
    kind: Literal["cosine", "linear"] = "cosine"


@dataclass(frozen=True, kw_only=True)
class Outer:
    steps: int = 1
    size: tuple[int, int] | None = None
    name: str | None = None
    on: bool = False
    inner: Inner = Inner()
    changes: dict[str, Any] = field(default_factory=dict)


def test_words_become_the_annotated_types() -> None:
    tree = {"steps": "12", "size": [3, 4], "on": "yes", "inner": {"rate": "1e-3", "clip": "2"}, "changes": {"a": [1]}}
    built = build(Outer, tree)
    assert built == Outer(steps=12, size=(3, 4), on=True, inner=Inner(rate=1e-3, clip=2.0), changes={"a": [1]})


def test_a_tree_survives_the_way_to_plain_values_and_back() -> None:
    value = Outer(steps=3, size=(2, 5), inner=Inner(kind="linear"), changes={"pool": "gap"})
    assert build(Outer, plain(value)) == value


@each_row(
    "tree, words",
    [
        ({"stps": 1}, "did you mean 'steps'"),
        ({"inner": {"rat": 1}}, "did you mean 'rate'"),
        ({"inner": {"kind": "cosin"}}, "did you mean 'cosine'"),
        ({"steps": 1.5}, "give a whole number"),
        ({"steps": True}, "give a whole number"),
        ({"steps": "inf"}, "give a whole number"),
        ({"size": [1, 2, 3]}, "size is"),
        ({"inner": 3}, "not a group of settings"),
        ({"inner": {"rate": "fast"}}, "give a number"),
    ],
)
def test_a_wrong_key_or_value_is_named_with_its_remedy(tree: dict, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        build(Outer, tree)


def test_a_duplicate_key_in_yaml_is_an_error_with_its_line(tmp_path) -> None:
    (tmp_path / "twice.yaml").write_text("steps: 1\nname: a\nsteps: 2\n")
    with pytest.raises(ConfigError, match=r"line 3.*duplicate key 'steps'"):
        read_yaml(tmp_path / "twice.yaml")


@each_row("text", ["a: [1", "- 1\n- 2\n", "\x00"])
def test_yaml_that_holds_no_settings_is_refused(tmp_path, text: str) -> None:
    (tmp_path / "bad.yaml").write_text(text)
    with pytest.raises(ConfigError):
        read_yaml(tmp_path / "bad.yaml")


def test_set_words_nest_and_read_their_value_as_yaml() -> None:
    assert assignment("optim.betas=[0.9, 0.95]") == {"optim": {"betas": [0.9, 0.95]}}
    assert assignment("optim.clip=null") == {"optim": {"clip": None}}
    for wrong in ("optim", "=3", "a..b=1"):
        with pytest.raises(ConfigError, match="is not an assignment"):
            assignment(wrong)


def test_overlay_goes_group_by_group_and_flatten_names_the_leaves() -> None:
    merged = overlay({"a": {"b": 1, "c": 2}, "d": 3}, {"a": {"b": 9}, "e": 4})
    assert merged == {"a": {"b": 9, "c": 2}, "d": 3, "e": 4}
    assert flatten(merged) == {"a.b": 9, "a.c": 2, "d": 3, "e": 4}


@dataclass(frozen=True, kw_only=True)
class _Round:
    kind: Literal["round"] = "round"
    radius: float = 1.0


@dataclass(frozen=True, kw_only=True)
class _Square:
    kind: Literal["square"] = "square"
    side: float = 1.0


@dataclass(frozen=True, kw_only=True)
class _Drawing:
    shape: _Round | _Square


def test_the_kind_of_a_value_chooses_among_dataclasses() -> None:
    drawing = build(_Drawing, {"shape": {"kind": "square", "side": "2e0"}})
    assert drawing == _Drawing(shape=_Square(side=2.0)) == build(_Drawing, plain(drawing))
    with pytest.raises(ConfigError, match=r"shape\.side"):
        build(_Drawing, {"shape": {"kind": "round", "side": 2}})
    with pytest.raises(ConfigError, match=r"(?s)shape\.kind is 'sqare'.*square"):
        build(_Drawing, {"shape": {"kind": "sqare"}})
