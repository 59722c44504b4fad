"""ONNX files from untrusted sources: their weights in other files, their damage, and what they may cost."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import helper

import vitrail
from tests.slow import few_or_nightly
from tests.weights.graphs import write_graph
from tests.weights.hostile_graphs import TRIED, in_front, node
from vitrail.errors import CheckpointError, VitrailError
from vitrail.inference.features import digest_of
from vitrail.weights import onnx as own_onnx
from vitrail.weights.onnx import add_checksum_to_onnx
from vitrail.weights.resolve import hash_model, resolve_model

IMAGES = torch.randn(2, 3, 16, 16, generator=torch.Generator().manual_seed(0))
MEASURE = """
import resource, sys
from vitrail.errors import CheckpointError
from vitrail.weights import load
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
for path in sys.argv[1:]:
    try:
        load(path)
    except CheckpointError as error:
        here = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
        print(here, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss, error.what)
"""


def write_split(folder: Path, *names: str) -> Path:
    """A graph whose weight and bias are in these files."""
    path = write_graph(folder / "a.onnx")
    model = onnx.load(path)
    weights = [tensor for tensor in model.graph.initializer if tensor.name in ("weight", "bias")]
    for name, tensor in zip(names, weights, strict=True):
        with open(folder / name, "ab") as file:
            onnx.external_data_helper.set_external_data(tensor, name, offset=file.tell(), length=len(tensor.raw_data))
            file.write(tensor.raw_data)
        tensor.ClearField("raw_data")
    path.write_bytes(model.SerializeToString())
    return path


def test_weights_in_files_of_any_name_are_read_and_hashed(tmp_path, fast_trial):
    path = write_split(tmp_path, "weights.bin", "more")
    (tmp_path / "whole").mkdir()
    whole = vitrail.load(write_graph(tmp_path / "whole/a.onnx"))
    (tmp_path / "current.onnx").symlink_to("a.onnx")
    digests, hashes = set(), set()
    for name in ("", "weights.bin", "more"):
        if name:
            content = (tmp_path / name).read_bytes()
            (tmp_path / name).write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
        digests.add(digest_of(vitrail.load(path)))
        hashes.add(hash_model(resolve_model(tmp_path / "current.onnx")))
        if not name:
            torch.testing.assert_close(vitrail.load(tmp_path / "current.onnx")(IMAGES), whole(IMAGES))
    assert len(digests) == len(hashes) == 3


def test_a_change_to_any_file_of_a_checksummed_graph_is_refused(tmp_path, fast_trial):
    path = write_split(tmp_path, "weights.bin", "more")
    add_checksum_to_onnx(path)
    vitrail.load(path)
    for name in ("weights.bin", "more"):
        content = (tmp_path / name).read_bytes()
        (tmp_path / name).write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
        with pytest.raises(CheckpointError, match="does not match its SHA-256"):
            vitrail.load(path)
        (tmp_path / name).write_bytes(content)


def test_a_failure_on_other_images_is_an_error_with_a_remedy(tmp_path, fast_trial):
    make = in_front(node("Reshape", ["images", "lengths"]), lengths=[1, 3, 16, 16])  # as it is on one image
    model = vitrail.load(make(tmp_path))
    assert model(IMAGES[:1]).shape == (1, 3)
    with pytest.raises(CheckpointError, match=r"cannot run the graph on images of \(2, 3, 16, 16\)") as error:
        model(IMAGES)
    assert error.value.remedy


@pytest.mark.slow
@pytest.mark.parametrize("count", few_or_nightly(50, 3_000))
def test_any_change_of_a_file_only_leads_to_errors_with_a_remedy(count, tmp_path, fast_trial):
    chance, path = random.Random(0), write_graph(tmp_path / "a.onnx")
    content, refused, loaded = path.read_bytes(), 0, 0
    graph = content[: content.index(b"vitrail")]  # the description is checked by tests of its own
    for _ in range(count):
        changed = bytearray(content)
        for _ in range(chance.choice((1, 1, 4))):
            changed[chance.randrange(len(graph))] = chance.randrange(256)
        path.write_bytes(changed)
        try:
            vitrail.load(path)
        except VitrailError as error:
            refused += bool(error.remedy)
        else:
            loaded += 1
    assert refused + loaded == count
    assert refused > count / 3


@pytest.mark.slow
def test_a_small_file_takes_no_more_memory_than_its_limit(tmp_path):
    paths = []
    for name in ("zeros", "the square of the image"):  # computed when the graph is opened, and when it runs
        (tmp_path / name).mkdir()
        paths.append(str(TRIED[name](tmp_path / name)))
    command = [sys.executable, "-c", MEASURE, *paths]
    lines = subprocess.check_output(command, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"}).splitlines()
    assert len(lines) == 2
    for own, child, words in (line.split(maxsplit=2) for line in lines):
        assert "MB for one image" in words
        assert int(own) * 1024 < 100 * 2**20
        assert int(child) * 1024 < own_onnx.SPARE_BYTES + 2 * 10**8  # with onnxruntime itself


@pytest.mark.slow
def test_a_graph_that_computes_without_an_end_is_stopped(tmp_path, monkeypatch):
    monkeypatch.setattr(own_onnx, "MIN_SECONDS", 2)
    side = 2000
    square = node("Expand", ["one", "lengths"], "x0")
    steps = [node("MatMul", [f"x{step}", f"x{step}"], f"x{step + 1}") for step in range(3000)]
    last = helper.make_node("Identity", ["x3000"], ["more"])
    path = in_front(square, *steps, last, one=np.float32(0), lengths=[side, side])(tmp_path)
    with pytest.raises(CheckpointError, match=r"did not process one image in 2 s|ended the process .*SIGXCPU|SIGKILL"):
        vitrail.load(path)
