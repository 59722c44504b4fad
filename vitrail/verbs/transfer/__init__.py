"""`vitrail transfer`: one model on several data sets, by the protocols of `vitrail probe` and by fine-tuning all of it."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Unpack

from vitrail.config.units import split_commas, whole_numbers
from vitrail.runtime.progress import log_nothing, to_stderr
from vitrail.verbs import options
from vitrail.verbs.devices import Devices, join_ranks, launch_again
from vitrail.verbs.verb import verb

if TYPE_CHECKING:
    from vitrail.reports.transfer import Transfer


@verb("protocols", "seeds", "epochs")
def transfer(
    model: Annotated[str | Path, f"{options.MODEL}."],
    data: Annotated[
        str | Path | Sequence[str | Path],
        "Data sets, each what `vitrail train` takes; with --vtab one folder of the tasks of VTAB-1k.",
    ],
    out: Annotated[
        options.File, "The folder for report.html, transfer.csv, .json and .md, and the runs of the fine-tuning."
    ],
    *,
    protocols: Annotated[str | Sequence[str], "Protocols, separated by commas."] = "knn,linear,fewshot,finetune",
    vtab: Annotated[
        bool,
        "The data are a folder with one folder for each task of VTAB-1k: trained on 1,000 images, evaluated on test.",
    ] = False,
    k: options.Neighbours = 20,
    shots: options.Shots = "1,5,10,25",
    epochs: Annotated[
        float | None,
        "Epochs of fine-tuning; by default those of the recipe finetune, or with --vtab paper-finetune/vtab.",
    ] = None,
    steps: Annotated[int | None, "Updates of fine-tuning, instead of epochs."] = None,
    seeds: Annotated[int, "Fine-tuning runs per data set; the result is their mean."] = 1,
    set: Annotated[Sequence[str] | None, "One setting of the fine-tuning, e.g. --set optim.lr=1e-4."] = None,
    cache: options.Cache = True,
    command: options.Command = "vitrail.transfer",
    log: options.Log = to_stderr,
    ranks: options.SharedWork = None,
    **given: Unpack[options.TunedReading],
) -> Transfer:
    """Evaluates a model on several data sets, by its frozen features and by fine-tuning: one table, and the mean over data sets.

    Running the same command again resumes where it stopped, and more data sets or protocols may be asked for. A data set that
    cannot be used is named with its reason, and the others go on. A data set that was changed since needs another --out.

    Raises:
        ConfigError: invalid settings, or settings other than those that ``out`` was begun with.
        CheckpointError, DiskError, Preempted, Interrupted: whatever concerns all data sets.
    """
    reading = options.parse(given)
    from dataclasses import replace
    from datetime import date

    from vitrail.config.parse import plain
    from vitrail.evaluation.vtab import TASKS
    from vitrail.files import make_folder
    from vitrail.inference.features import digest_of
    from vitrail.reports.transfer import Transfer, write_transfer
    from vitrail.runs.cells import Cells
    from vitrail.runtime.distributed import SINGLE
    from vitrail.runtime.machine import describe, versions
    from vitrail.verbs.probe.protocols import ProbeProtocol
    from vitrail.verbs.transfer.data_sets import (
        FINETUNE,
        VTAB_RECIPE,
        DataSet,
        Tuning,
        check_protocols,
        describe_settings,
        find_tasks,
        name_data,
    )
    from vitrail.weights.resolve import resolve_model

    ranks, folder = ranks or SINGLE, Path(out)
    log = log if ranks.first else log_nothing
    tuning = Tuning(epochs=epochs, steps=steps, settings=tuple(set or ()), seeds=seeds)
    asked, counts = tuple(split_commas(protocols)), whole_numbers(shots)
    with ranks.share_errors():
        check_protocols(asked)
        probes = {name: ProbeProtocol(protocol=name, k=k, shots=counts) for name in asked if name != FINETUNE}
        names = find_tasks(data) if vtab else name_data(data)
        if vtab:
            log(f"vtab     {len(names)} of {len(TASKS)} tasks")
            tuning = replace(tuning, recipe=VTAB_RECIPE)
            reading = replace(reading, preprocessing={"resize": "squash", **reading.preprocessing})
        init = resolve_model(model).path.resolve()
        if FINETUNE in asked:
            # invalid settings are refused before anything is computed
            tuning.run(init, next(iter(names.values())), reading, seed=0)
        task = reading.load(init, log)
    cells = Cells(folder, "transfer")
    # all that decides the figures but the data sets and protocols, which may grow
    decided = {"weights": digest_of(task), "k": k, "shots": counts, FINETUNE: tuning, "precision": reading.precision}

    def begin() -> None:
        make_folder(folder)
        cells.begin(plain(decided))

    ranks.run_on_rank0(begin)
    rows = {}
    for name, source in names.items():
        log(f"data     {name}")
        of_vtab = TASKS[name] if vtab else None
        kept = options.choose_cache(cache)
        data_set = DataSet(source, init, task, cells, reading, kept, command, log, ranks, of_vtab)
        rows[name] = data_set.compute({each: probes.get(each) for each in asked}, tuning)
    result = Transfer(
        model=resolve_model(model).name,
        protocols=asked,
        rows=rows,
        settings=describe_settings(probes, tuning if FINETUNE in asked else None, vtab=vtab),
        command=command,
        machine=describe(),
        versions=versions(),
        date=date.today().isoformat(),
        vtab=vtab,
    )
    ranks.run_on_rank0(lambda: write_transfer(folder, result))
    return result


def run(model: str, /, *data: str, devices: Devices = None, json: options.AsJson = False, **given: Any) -> int:
    from vitrail.verbs.printing import columns, command_line, one_line, print_beside

    if (code := launch_again(devices)) is not None:
        return code
    with join_ranks(given.get("device")) as ranks:
        result = transfer(model, data, command=command_line(), ranks=ranks, **given)
    if not ranks.first:
        return result.code
    show = print_beside(json)
    show(columns(result.table(), ["data", *result.protocols]))
    show(f"report: {given['out'] / 'report.html'}")
    for name, cell in result.failures.items():
        print(f"error: {name}: {cell.error}", file=sys.stderr)
    if json:
        means = {
            f"{name}_{protocol}": mean.accuracy
            for name, row in result.means().items()
            for protocol, mean in row.items()
        }
        print(one_line({"data_sets": len(result.rows), "failed": len(result.failures), **means}))
    return result.code
