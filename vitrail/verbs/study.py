"""`vitrail study`: claims tested by trainings on a user's own images; and its commands `work`, `report` and `write`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from vitrail.config.units import seconds, split_commas
from vitrail.errors import ConfigError
from vitrail.runtime.progress import to_stderr
from vitrail.verbs import options
from vitrail.verbs.verb import verb

if TYPE_CHECKING:
    from vitrail.studies.report import StudyReport

Folder = Annotated[Path, "The --out of `vitrail study`."]


@verb("budget", "config", "out")
def study(
    data: Annotated[str | Path | None, "Labelled images, a path or `digits`; None for those of the study."] = None,
    *,
    out: Annotated[options.File | None, "The folder for the page and every result; by default runs/study-NAME."] = None,
    budget: Annotated[
        str | float | None, "Time in all, as 20m or 1h; experiments that do not fit are left out."
    ] = None,
    claims: Annotated[str | Sequence[str] | None, "Claims to test, separated by commas; by default all."] = None,
    study: Annotated[str | None, "A built-in study: vit-paper (the default), vit-paper-m for a GPU, or digits."] = None,
    config: Annotated[options.File | None, "A study of your own as YAML, in place of a built-in one."] = None,
    jobs: Annotated[int | None, "Worker processes of one thread each; by default one for each core."] = None,
    until: Annotated[
        str | float | None, "Stop after this time, as 8m30s, and decide; the same command continues."
    ] = None,
    dry_run: Annotated[bool, "Only print the plan: trials, minutes, and what each claim could detect."] = False,
    quiet: options.Quiet = False,
    command: options.Command = "vitrail.study",
    log: options.Log = to_stderr,
) -> StudyReport | None:
    """Tests claims of the ViT paper, or your own, on your images and this machine: held, did not hold, or cannot tell.

    Trains small networks from several seeds within a budget of time; the same command again continues where it stopped.

    Returns:
        The verdicts, whose ``report`` is the page; None of a dry run, which logs the plan.

    Raises:
        ConfigError: an invalid study, an unknown claim, a budget that is too small, or the folder of another study.
        DataError: images that cannot be used.
        Preempted, Interrupted: it was stopped.
    """
    from vitrail.data.sources.open import resolve_name
    from vitrail.studies.design import find_definition, read_study
    from vitrail.studies.plan import choose_claims
    from vitrail.studies.report import report_study
    from vitrail.studies.run import make_priced_plan, run_study

    if not isinstance(data, str | Path | None):
        raise ConfigError(
            "a study takes no images in memory: its workers are processes", "give the path of their folder"
        )
    built_in = study or ("digits" if str(data) == "digits" else "vit-paper")
    definition = read_study(find_definition(built_in) if config is None else Path(config))
    definition = choose_claims(definition, split_commas(claims or ()))
    if data is not None:
        definition = replace(definition, pool=replace(definition.pool, source=resolve_name(data)))
    bound, ends = (None if given is None else seconds(given) for given in (budget, until))
    if dry_run:
        make_priced_plan(definition, budget=bound, jobs=jobs, log=log)
        return None
    folder = Path(out or f"runs/study-{definition.name}")
    run_study(definition, folder, budget=bound, jobs=jobs, until=ends, command=command, quiet=quiet, log=log)
    return report_study(folder)


def run(data: str | None = None, /, *, json: options.AsJson = False, **given: Any) -> None:
    from vitrail.verbs.printing import command_line, one_line

    lines: list[str] = []

    def log(line: str) -> None:
        lines.append(line)
        to_stderr(line)

    result = study(data, command=command_line(), log=log, **given)
    if result is not None:
        _print_report(result, json=json)
    elif json:
        print(one_line({"plan": "\n".join(lines)}))


def work(folder: Folder, /, *, json: options.AsJson = False) -> None:
    """Compute trials of a planned study until none is left: any number of processes, on any machines that see the folder."""
    from vitrail.studies.worker import work_study
    from vitrail.verbs.printing import one_line

    computed = work_study(folder)
    print(one_line({"computed": computed}) if json else f"computed {computed} trials")


def report(folder: Folder, /, *, json: options.AsJson = False) -> None:
    """Decide the results that there are, and write report.html, numbers.json, costs.json and trials.csv."""
    from vitrail.studies.report import report_study

    _print_report(report_study(folder), json=json)


def write(name: Annotated[str, "vit-paper, vit-paper-m or digits."], /) -> None:
    """Print a built-in study as YAML, to begin one of your own: `vitrail study write vit-paper > mine.yaml`."""
    from vitrail.studies.design import write_study

    print(write_study(name), end="")


def _print_report(result: StudyReport, *, json: bool) -> None:
    from vitrail.studies.page import spell_effect
    from vitrail.verbs.printing import columns, one_line, print_beside

    claims, show = result.numbers["claims"], print_beside(json)
    show(columns([[row["name"], row["verdict"], spell_effect(row["effect"]), row["why"]] for row in claims]))
    for each in result.numbers["not_asked"]:
        show(f"not asked: {each['name']}: {each['why']}")
    show(f"report: {result.report}")
    if json:
        print(one_line({row["name"]: row["verdict"] for row in claims}))
