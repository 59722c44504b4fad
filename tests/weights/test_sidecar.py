"""The description beside weights of a foreign layout: it holds for these weights alone, and is refused where it lies."""

from __future__ import annotations

import json

import numpy as np
import pytest

from tests.models.tiny import TINY
from vitrail.checksums import add_checksum
from vitrail.errors import CheckpointError, VitrailError
from vitrail.verbs.convert import convert
from vitrail.weights import load
from vitrail.weights.google import read_npz

LIES = [
    ("describes other weights than a", lambda told: told | {"sha256": "0" * 64}),
    ("format version 9", lambda told: told | {"format_version": 9}),
    ("architecture 'swim'", lambda told: told | {"architecture": "swim"}),
    ("fit|positions", lambda told: told | {"config": told["config"] | {"image_size": [32, 32]}}),
    ("missing|fit|no '", lambda told: told | {"config": told["config"] | {"depth": 3}}),
    ("fit|not read", lambda told: told | {"config": told["config"] | {"pool": "map"}}),
    ("no field 'wdth'", lambda told: told | {"config": told["config"] | {"wdth": 3}}),
    ("1 class names for 3 outputs", lambda told: told | {"classes": ["one"]}),
    ("no 'preprocessing'", lambda told: {name: value for name, value in told.items() if name != "preprocessing"}),
]


@pytest.mark.parametrize(("layout", "name"), [("google", "a.npz"), ("timm", "a.safetensors")])
def test_a_description_beside_weights_that_lies_is_refused(tmp_path, saved, layout, name):
    place = convert(saved(), tmp_path / name, layout).path
    beside = tmp_path / "a.json"
    told = json.loads(beside.read_text())
    for words, damage in LIES:
        beside.write_text(json.dumps(add_checksum(damage(told))))
        with pytest.raises(VitrailError, match=words):
            load(place)


def test_googles_arrays_show_their_heads_whatever_is_described(tmp_path, saved):
    place = convert(saved(), tmp_path / "a.npz", "google").path
    told = json.loads((tmp_path / "a.json").read_text())
    told["config"]["heads"] = 3
    (tmp_path / "a.json").write_text(json.dumps(add_checksum(told)))
    with pytest.raises(CheckpointError, match="its heads is 2, but 3 in the description"):
        load(place)


def test_a_description_of_another_network_beside_googles_arrays_is_refused(tmp_path, saved):
    place = convert(saved(), tmp_path / "a.npz", "google").path
    path = tmp_path / "a.json"
    told = json.loads(path.read_text())
    other = {**told, "architecture": "bit", "config": TINY["bit"].to_dict() | {"classes": 3}}
    path.write_text(json.dumps(add_checksum(other)))
    with pytest.raises(CheckpointError, match="its description is of a BiT ResNet"):
        load(place)


def test_a_description_beside_weights_that_is_torn_is_refused(tmp_path, saved):
    place = convert(saved(), tmp_path / "a.npz", "google").path
    (tmp_path / "a.json").write_text((tmp_path / "a.json").read_text()[:-9])
    with pytest.raises(CheckpointError, match=r"a\.json is not JSON"):
        load(place)


def test_without_its_description_the_papers_numerics_hold_and_foreign_json_is_let_be(tmp_path, saved):
    place = convert(saved(gelu="exact"), tmp_path / "a.npz", "google").path
    assert load(place).config.gelu == "exact"
    (tmp_path / "a.json").write_text('{"labels": ["cat"]}')
    assert load(place, log=lambda line: None).config.gelu == "tanh"
    (tmp_path / "a.json").unlink()
    assert load(place, log=lambda line: None).config.gelu == "tanh"


def test_weights_that_changed_since_are_not_read_with_the_old_description(tmp_path, saved):
    place = convert(saved(), tmp_path / "a.npz", "google").path
    np.savez(place, **{name: array * 2 for name, array in read_npz(place).items()})
    with pytest.raises(CheckpointError, match=r"a\.json describes other weights"):
        load(place)
