"""`vitrail study` for Python; `work_study`, `report_study` and so on are ``vitrail study work`` and so on."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from vitrail.config.flags_study import StudyFlags
from vitrail.config.keywords import takes
from vitrail.config.units import seconds, split_commas
from vitrail.runtime.progress import Say, to_stderr

if TYPE_CHECKING:
    from vitrail.workflows.study.conclude import Studied


@takes(StudyFlags)
def study(
    data: Any = None, *, command: str = "vitrail.study", log: Say = to_stderr, **flags: Unpack[StudyFlags]
) -> Studied | None:
    """Tests claims of the ViT paper, or a user's own, on labelled images: trains, judges and writes the page.

    The same call goes on where it stopped.

    Args:
        data: anything `train` takes, small images in memory too; None for those that the study names.
        command: how the page names the call.

    Returns the verdicts, whose ``report`` is the page; None of a dry run, which logs the plan.

    Raises `ConfigError` for an invalid study, an unknown claim, a budget that is too small, and the folder of another study;
    `DataError` for images that cannot be used; `Preempted` and `Interrupted` when it is stopped.
    """
    from vitrail.data.sources.arrays import BUILT_IN
    from vitrail.workflows.study.conclude import conclude
    from vitrail.workflows.study.definitions import find_study, read_study
    from vitrail.workflows.study.run import Asked, plan_only, run_study

    config, name = flags["config"], str(data) if isinstance(data, str | Path) else ""
    definition = find_study(flags["study"] or ("digits" if name == "digits" else "vit-paper"))
    if config is not None:
        definition = read_study(Path(config))
    if name:
        source = name if name in BUILT_IN else str(Path(name).expanduser().resolve())
        definition = replace(definition, pool=replace(definition.pool, source=source))
    asked = Asked(
        definition=definition,
        data=None if name else data,
        budget=None if flags["budget"] is None else seconds(flags["budget"]),
        claims=tuple(split_commas(flags["claims"] or ())),
        jobs=flags["jobs"],
        until=None if flags["until"] is None else seconds(flags["until"]),
        command=command,
    )
    out = Path(flags["out"] or Path("runs") / f"study-{definition.name}")
    if flags["dry_run"]:
        plan_only(asked, out, log)
        return None
    run_study(asked, out, quiet=flags["quiet"], say=log)
    return conclude(out)


def work_study(folder: str | Path) -> int:
    """Computes cells of the study in ``folder`` until every one has a result, and returns how many this process computed.

    Any number of processes may do so at a time, on any machines that see the folder. Raises `ConfigError` for a folder without
    a plan, `DataError` for images other than the plan's, `DiskError`, and `Preempted` or `Interrupted` when it is stopped.
    """
    from vitrail.workflows.study.workers import work_on

    return work_on(Path(folder))


def report_study(folder: str | Path) -> Studied:
    """Judges the results that there are in ``folder``, and writes the page and its figures. Raises `ConfigError`."""
    from vitrail.workflows.study.conclude import conclude

    return conclude(Path(folder))


def pack_study(folder: str | Path, file: str | Path) -> int:
    """Writes the results of the study in ``folder`` to ``file``, a zip; returns their number. Raises `ConfigError`."""
    from vitrail.workflows.study.exchange import pack

    return pack(Path(folder), Path(file))


def add_study(folder: str | Path, file: str | Path, *, log: Say = to_stderr) -> int:
    """Takes the results in ``file``, from `pack_study`, that the study in ``folder`` lacks; returns their number.

    A new folder becomes that study. Raises `ConfigError` for a file of another study, `DataError` for a damaged one.
    """
    from vitrail.workflows.study.exchange import add

    return add(Path(folder), Path(file), log)


def write_study(name: str) -> str:
    """A built-in study as YAML: vit-paper, vit-paper-m or digits. Raises `ConfigError` for another name."""
    from vitrail.workflows.study.definitions import find_study, format_study

    return format_study(find_study(name))
