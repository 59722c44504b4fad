"""Every function that writes files is listed with its kind in the table of flips, or with the reason why it needs none."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from fnmatch import fnmatch

import pytest

from tests.import_graph import PACKAGE, files
from tests.written_kinds import Kind, list_files, write_kinds

WRITERS = {"replace_file", "write_checksummed", "write_bytes", "stage_file", "stage_folder", "save_array", "open_table"}
WRITERS |= {"write_text", "savez", "savez_compressed", "write_shards", "save_file"}
LIBRARIES = {"np", "dcp"}  # whose `save` writes a file
LEFT_OUT = {"files.py"}  # the functions above
SHOWN = "for people and other software: not read again"
PRESENT = "only whether it is there is read"
PASSING = "locks, leases and messages of running processes"

# by a kind of `write_kinds`, or by the reason: file:function
KNOWN = {
    "native": "weights/native.py:write_folder weights/native.py:save_model weights/native.py:_store",
    "timm": "verbs/convert/layouts.py:write_layout",
    "a.npz": "weights/google.py:to_npz",
    "graph.onnx": "weights/onnx/__init__.py:add_checksum",
    "check graph.onnx": """exports/sidecar.py:write_sums exports/graph.py:to_onnx exports/graph.py:to_program
        verbs/export/files.py:write_export verbs/export/files.py:_write_graph verbs/export/files.py:_add_figures
        exports/openvino.py:add_metadata inference/runtimes.py:_keep_graph""",
    "run": """runs/folder.py:write_config runs/folder.py:write_status runs/folder.py:start_metrics
        runs/folder.py:_write_sizes runs/folder.py:write_timing
        training/fingerprint.py:record_or_check training/fingerprint.py:_write_stamps data/sources/bad_images.py:__init__
        data/sources/bad_images.py:__call__ runs/checkpoint.py:save runs/checkpoint.py:publish""",
    "checkpoint of ranks": "runs/checkpoint.py:_write_parts runs/tensor_shards.py:write_shards",
    "cells": """runs/cells.py:begin runs/cells.py:write runs/trackers.py:start runtime/tuning.py:_recall
        data/sources/mask_values.py:measure_masks data/sources/hub.py:_list_files
        reports/transfer.py:write_transfer""",
    "study": """studies/plan.py:write_plan studies/plan.py:write_result
        studies/run.py:run_study studies/run.py:run_workers""",
    "study attempts": "shared_work.py:_write",
    "parts, parquet": """inference/parts/folder.py:open inference/parts/folder.py:commit inference/parts/folder.py:finish
        inference/parts/compute.py:write_part""",
    "parts, npy": "inference/parts/compute.py:_write_array",
    "shards": """shards/tar.py:write_archive shards/index.py:write_index shards/index.py:find_index
        shards/cache.py:_download verbs/data/__init__.py:shard_data
        verbs/data/shards.py:write_shards
        verbs/data/shards.py:_write_found""",
    "image index": "inference/index.py:write_index",
    "cached features": "inference/features.py:keep",
    "decoded images": "data/decoded_cache.py:_share",
    SHOWN: """analysis/figure.py:save analysis/render.py:save_png
        reports/cards.py:write_card reports/page.py:write_page weights/peft.py:write_peft
 tables.py:open_table
        tables.py:save_array tables.py:write_features runs/folder.py:_append
        tasks/detection/answer.py:write tasks/detection/answer.py:close tasks/detection/answer.py:write_results
        tasks/instances/answer.py:write tasks/instances/answer.py:close
        tasks/panoptic/answer.py:write tasks/panoptic/answer.py:close
        tasks/segmentation/answer.py:write tasks/segmentation/answer.py:close
        training/step.py:_raise_diverged verbs/data/__init__.py:check_data verbs/data/drawings.py:draw_split
        verbs/data/labels.py:write_page verbs/data/labels.py:write_table
        studies/report.py:report_study inference/comparison.py:write_agreement evaluation/evaluate.py:write_predictions
        verbs/evaluate.py:_write_report verbs/explain/write.py:_explain_each verbs/explain/write.py:_write
        verbs/explain/scores.py:measure_localisation verbs/inspect/measurements.py:inspect_model
        verbs/inspect/cost.py:compare_costs
        verbs/inspect/measurements.py:inspect_pair inference/outputs.py:prepare_drawing verbs/predict.py:write_answers
        verbs/predict.py:write_rows verbs/push.py:push verbs/search.py:search
        verbs/search.py:_write_page verbs/search.py:run verbs/train/folds.py:_write""",
    PRESENT: "shards/index.py:remember_root",
    PASSING: """data/workers.py:create_memory data/workers.py:serve
        runs/folder.py:open shared_work.py:__init__ runtime/launch.py:leave_code shards/cache.py:_lock
        weights/pickle_sandbox.py:rewrite weights/pickle_sandbox.py:main""",
}


def find_writers(tree: ast.AST, function: str = "") -> Iterator[str]:
    """The outermost functions in which files are written."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Call) and is_writing(node):
            yield function
        name = node.name if isinstance(node, ast.FunctionDef) and not function else function
        yield from find_writers(node, name)


def is_writing(call: ast.Call) -> bool:
    owner = getattr(getattr(call.func, "value", None), "id", "")
    name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    if name in ("open", "fdopen"):
        modes = [each.value for each in call.args if isinstance(each, ast.Constant) and isinstance(each.value, str)]
        return any(set(mode) <= set("rwaxbt+") and set(mode) & set("wax+") for mode in modes) or (
            owner == "os" and "O_CREAT" in ast.dump(call)
        )
    return name in WRITERS or (name == "save" and owner in LIBRARIES)


def test_every_function_that_writes_files_is_listed() -> None:
    found = {
        f"{path.relative_to(PACKAGE).as_posix()}:{function}"
        for path in files(PACKAGE)
        if path.relative_to(PACKAGE).as_posix() not in LEFT_OUT
        for function in find_writers(ast.parse(path.read_text()))
    }
    listed = [name for names in KNOWN.values() for name in names.split()]
    assert len(listed) == len(set(listed))
    assert found == set(listed)


@pytest.fixture(scope="module")
def kinds(tmp_path_factory: pytest.TempPathFactory) -> list[Kind]:
    return list(write_kinds(tmp_path_factory.mktemp("kinds"), exports=False))


def test_every_kind_that_is_listed_is_in_the_table_of_flips(kinds: list[Kind]) -> None:
    assert set(KNOWN) - {SHOWN, PRESENT, PASSING} <= {kind.name for kind in kinds}


def test_every_file_that_is_written_with_a_kind_is_in_the_table_of_flips(kinds: list[Kind]) -> None:
    for kind in kinds:
        if kind.folder is not None:
            others = {path.relative_to(kind.folder).as_posix() for path in {*list_files(kind.folder)} - {*kind.files}}
            unknown = [name for name in others if not any(fnmatch(name, pattern) for pattern in kind.unread)]
            assert not unknown, kind.name
