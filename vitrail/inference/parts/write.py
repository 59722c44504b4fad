"""`vitrail predict --parts` and `vitrail embed --parts`: answers or features for many images, in parts.

Any number of processes may compute the parts of one folder, with ``--shard`` or without: each part is claimed by one at a time.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing, nullcontext
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

from vitrail.errors import ConfigError
from vitrail.inference.comparison import Comparison
from vitrail.inference.inputs import ImageInputs, find_inputs
from vitrail.inference.options import InferenceOptions, tune_options
from vitrail.inference.parts.compute import CONTINUE, Compute, Job, compute_parts, make_plan
from vitrail.inference.parts.folder import PartFolder, read_precision
from vitrail.inference.precision import settle_precision
from vitrail.inference.results import describe_inputs, named_unreadable, none_readable
from vitrail.runtime.machine import versions
from vitrail.runtime.process import end_at_once
from vitrail.runtime.progress import LogFunction, ProgressBar
from vitrail.shared_work import work_through
from vitrail.tables import import_pyarrow
from vitrail.tasks.task import Task
from vitrail.text import plural

PART_SIZE = 4096  # images
WAIT = 1.0  # seconds before a part is tried again that another process computes


@dataclass(frozen=True, kw_only=True)
class Division:
    """How the work is divided.

    Args:
        folder: of the parts.
        size: images of a part.
        shard: (i, n): only every n-th part from the i-th on, from 0.
        engine: what runs the processes.
        format: of the parts.
    """

    folder: Path
    size: int = PART_SIZE
    shard: tuple[int, int] = (0, 1)
    engine: Literal["local", "ray"] = "local"
    format: str = "parquet"

    def __post_init__(self) -> None:
        if self.size < 1:
            raise ConfigError(f"--part-size is {self.size}", "give 1 image or more")
        if self.format == "parquet":
            import_pyarrow()


def write_parts(job: Job, inputs: Sequence[str], division: Division, log: LogFunction) -> Path:
    """Computes those parts of a folder that are missing, and returns its path.

    Raises:
        ConfigError: the folder has parts of another plan; the engine is not installed.
        DataError: after all parts are written, an image that was named by its path, or every image, could not be read.
        Preempted, Interrupted: stopped by SIGTERM or Ctrl-C; the same call continues.
    """
    with end_at_once(CONTINUE):
        # the driver of Ray only looks at the model
        on_cpu = replace(job, options=replace(job.options, device="cpu"))
        task = (on_cpu if division.engine == "ray" else job).load(log)
        images = find_inputs(inputs)
        options, comparison = _settle_precision(job, task, images, division, log)
        job = replace(job, options=options)
        plan = make_plan(job, task, images.source, part_size=division.size, format=division.format)
        name = type(job.model).__name__ if isinstance(job.model, Task) else str(job.model)
        about: dict[str, Any] = {"model": name, "inputs": list(inputs)[:10], "versions": versions()}
        if comparison is not None:
            about["agreement"] = asdict(comparison)
        with closing(PartFolder.open(division.folder, plan, about)) as folder:
            number, shards = division.shard
            numbers = range(plan.count)[number::shards]
            missing = folder.list_missing(numbers)
            share = f", {len(numbers):,} of shard {number}/{shards}" if shards > 1 else ""
            log(f"parts    {plural(plan.count, 'part')}{share}; {len(numbers) - len(missing):,} done before")
            if missing:
                if division.engine == "local":
                    options = tune_options(job.options, task, log, images=folder.count_images(missing))
                    job = replace(job, options=options)
                    engine = nullcontext(partial(compute_parts, job, task, images, folder))
                else:
                    from vitrail.inference.parts.ray_engine import open_actors

                    engine = open_actors(job, images, folder)
                with engine as compute:
                    _compute_missing(job, folder, numbers, missing, compute, log)
            _conclude(job, images, folder, numbers, log)
    return division.folder


def _settle_precision(
    job: Job, task: Task, images: ImageInputs, division: Division, log: LogFunction
) -> tuple[InferenceOptions, Comparison | None]:
    """Returns what `settle_precision` does, with the precision of the parts in the folder, if there are any. The driver of Ray
    cannot measure what the actors compute on, which therefore compute in fp32.
    """
    if job.options.precision != "auto":
        return job.options, None
    if stated := read_precision(division.folder):
        return replace(job.options, precision=stated), None
    if division.engine == "ray":
        return replace(job.options, precision="fp32"), None
    return settle_precision(job.options, task, log, verb=job.verb, source=images.source)


def _compute_missing(
    job: Job, folder: PartFolder, numbers: Sequence[int], missing: Sequence[int], compute: Compute, log: LogFunction
) -> None:
    """Computes the missing parts of ``numbers``, and waits for those that other processes are computing."""
    title = {"predict": "predicting", "embed": "embedding"}[job.verb]
    with ProgressBar(title, folder.count_images(numbers), quiet=job.options.quiet) as progress:
        done = 0

        def list_open() -> Sequence[int] | None:
            nonlocal missing, done
            missing = folder.list_missing(missing)
            done = progress.total - folder.count_images(missing)
            return missing or None

        def add(count: int) -> None:
            nonlocal done
            done += count
            progress.update(done)

        def on_wait(parts: Sequence[int]) -> None:
            log(f"waiting  for {plural(len(parts), 'part')} that other processes compute")

        work_through(list_open, lambda parts: compute(parts, add), poll=WAIT, on_wait=on_wait)


def _conclude(job: Job, images: ImageInputs, folder: PartFolder, numbers: Sequence[int], log: LogFunction) -> None:
    """Writes the manifest when all parts are done, says what became of the images, and raises as `write_parts` does."""
    done = folder.finish()
    records = [record for number in numbers if (record := folder.read_record(number))]
    count, unreadable, named = (sum(record[name] for record in records) for name in ("images", "unreadable", "named"))
    state = "all parts are done" if done else f"{plural(len(numbers), 'part')} done, others are missing"
    log(f"written  {folder.path}: {state}; {plural(count, 'image')}")
    if unreadable or images.left_out:
        verb = {"predict": "predicted", "embed": "embedded"}[job.verb]
        log(f"inputs   {describe_inputs(images, verb, count - unreadable, unreadable)}")
    firsts = [record["first"][0] for record in records if record["named" if named else "unreadable"]]
    if unreadable == count and firsts:
        raise none_readable(count, *firsts[0])
    if named:
        raise named_unreadable(named, *firsts[0])
