"""The options of `vitrail study`: name, type, default and help text."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, TypedDict

from vitrail.config.flags_inference import Flag, Quiet


class StudyFlags(TypedDict, total=False):
    """`vitrail study`."""

    out: Annotated[
        str | Path | None,
        Flag("The folder for report.html, numbers.json, cells.csv and every result; by default runs/study-NAME.", word=Path),
    ]  # fmt: skip
    budget: Annotated[
        str | float | None,
        Flag("Time that it may take in all, as 20m or 1h; experiments that do not fit are left out. No bound by default.",
             word=str),
    ]  # fmt: skip
    claims: Annotated[
        str | Sequence[str] | None,
        Flag("Claims to test, separated by commas; by default all of the study.", word=str),
    ]
    study: Annotated[str | None, Flag("A built-in study: vit-paper (the default), vit-paper-m for a GPU, or digits.")]
    config: Annotated[str | Path | None, Flag("A study of your own as YAML, in place of a built-in one.", word=Path)]
    jobs: Annotated[int | None, Flag("Worker processes of one thread each; by default one for each core.")]
    until: Annotated[
        str | float | None,
        Flag("Stop after this time, as 8m30s, and judge what is there; the same command goes on.", word=str),
    ]
    dry_run: Annotated[
        bool,
        Flag(
            "Only print the plan: cells, operations, minutes, and the difference that each claim could detect.", False
        ),
    ]
    quiet: Quiet
