"""The means and deviations of `vitrail transfer`, against figures computed by hand."""

from __future__ import annotations

import csv
import json
import math
from dataclasses import replace
from pathlib import Path

import pytest

from vitrail.evaluation.vtab import TASKS
from vitrail.reports.transfer import Cell, Transfer, markdown, page, write_transfer


def cell(*runs: float, **how: tuple[str, ...]) -> Cell:
    by_seed = {f"accuracy_seed{seed}": run for seed, run in enumerate(runs)} if len(runs) > 1 else {}
    return Cell({"accuracy": sum(runs) / len(runs), **by_seed}, **how)


def vtab(**rows: Cell) -> Transfer:
    named = {name.replace("_", "-"): {"finetune": each} for name, each in rows.items()}
    return Transfer("m", ("finetune",), named, vtab=True)


# by run: natural (0.9 + 0.5) / 2 = 0.7 and (0.8 + 0.6) / 2 = 0.7; all three 1.7 / 3 and 1.5 / 3
DONE = vtab(pets=cell(0.9, 0.8), svhn=cell(0.5, 0.6), clevr_count=cell(0.3, 0.1))


def test_the_mean_of_a_group_is_over_its_tasks_and_its_deviation_over_the_runs() -> None:
    means = {name: row["finetune"] for name, row in DONE.means().items()}
    assert list(means) == ["natural", "structured", "mean"]
    assert [each.accuracy for each in means.values()] == pytest.approx([0.7, 0.2, 1.6 / 3])
    assert [each.std for each in means.values()] == pytest.approx([0, 0.1 * math.sqrt(2), (0.1 / 3) * math.sqrt(2)])
    assert [each.count for each in means.values()] == [2, 1, 3]


def test_the_mean_over_all_tasks_counts_tasks_and_not_groups() -> None:
    assert DONE.mean("finetune") == pytest.approx((0.85 + 0.55 + 0.2) / 3)
    assert DONE.mean("finetune") != pytest.approx((0.7 + 0.2) / 2)


def test_the_table_says_over_how_many_tasks_a_mean_is() -> None:
    rows = {row[0]: row[1].replace("\u202f", " ") for row in DONE.table()}
    assert rows == {
        "pets": "85.0 % ± 7.07",
        "svhn": "55.0 % ± 7.07",
        "clevr-count": "20.0 % ± 14.14",
        "natural": "70.0 % ± 0.00 (2 of 7)",
        "structured": "20.0 % ± 14.14 (1 of 8)",
        "mean": "53.3 % ± 4.71 (3 of 19)",
    }
    assert "No data of 16 tasks: caltech101, cifar100, dtd," in markdown(DONE)


def test_a_failed_task_is_left_out_of_the_mean_of_vtab_and_makes_other_means_undefined() -> None:
    rows = {**DONE.rows, "svhn": {"finetune": Cell(error="broken", code=3)}}
    failed = replace(DONE, rows=rows)
    assert failed.mean("finetune") == pytest.approx((0.85 + 0.2) / 2)
    assert failed.means()["natural"]["finetune"].count == 1
    natural = page(failed).replace("\u202f", " ").replace("\n", "").split("<strong>natural: mean</strong>")[1]
    assert "<td>92.7 %</td></tr>" in natural.split("<tr>")[0], "the paper's mean is over the tasks that were done, too"
    assert math.isnan(replace(failed, vtab=False).mean("finetune"))


def test_the_page_has_the_papers_figures_of_the_same_tasks() -> None:
    shown = page(DONE).replace("\u202f", " ").replace("\n", "")
    natural, structured, mean = (shown.split(f"<strong>{name}</strong>")[1].split("</tr>")[0]
                                 for name in ("natural: mean", "structured: mean", "mean"))  # fmt: skip
    assert "<td>86.8 %</td>" in natural, "(92.7 + 80.9) / 2 of ViT-L/16, ImageNet-21k"
    assert "<td>91.7 %</td><td>86.4 %</td><td>70.3 %</td>" in structured
    assert "<td>81.3 %</td>" in mean, "(92.7 + 80.9 + 70.3) / 3"
    complete = page(Transfer("m", ("finetune",), {name: {"finetune": cell(0.5)} for name in TASKS}, vtab=True))
    assert "<td>77.6 % ± 0.23</td><td>76.3 % ± 0.46</td><td>72.7 % ± 0.21</td>" in complete.replace(
        "\u202f", " "
    ).replace("\n", "")
    assert "ViT-H/14" not in page(replace(DONE, vtab=False))


def test_notes_of_kept_cells_stand_on_the_page_once() -> None:
    row = {"knn": cell(0.5, notes=("pets: 12 images",)), "finetune": cell(0.5, notes=("pets: 12 images",))}
    shown = page(Transfer("m", ("knn", "finetune"), {"pets": row}, vtab=True))
    assert shown.count("pets: 12 images") == 1


def test_the_files_have_the_deviations(tmp_path: Path) -> None:
    write_transfer(tmp_path, DONE)
    with open(tmp_path / "transfer.csv") as file:
        rows = {row["data"]: row for row in csv.DictReader(file)}
    assert (rows["pets"]["finetune"], rows["pets"]["finetune_std"]) == ("0.850000", "0.070711")
    assert (rows["mean"]["finetune"], rows["mean"]["finetune_std"]) == ("0.533333", "0.047140")
    told = json.loads((tmp_path / "transfer.json").read_text())
    assert told["means"]["structured"]["finetune"]["accuracy"] == pytest.approx(0.2)
    assert told["results"]["svhn"]["finetune"]["accuracy_seed1"] == 0.6
    assert len(told["missing"]) == 16
    single = replace(DONE, rows={"pets": {"finetune": cell(0.5)}})
    assert single.to_dict()["means"]["mean"]["finetune"] == {"accuracy": 0.5, "accuracy_std": None, "data_sets": 1}
