"""The history of a run: losses and figures by step, and its speed."""

from __future__ import annotations

from typing import Any

from vitrail.runs.folder import RunFolder


def speed(folder: RunFolder) -> float | None:
    """Images per second over the whole run, where any were counted."""
    laps = [lap for lap in folder.timing() if "images_per_second" in lap]
    busy = sum(lap["seconds"] for lap in laps)
    return sum(lap["images_per_second"] * lap["seconds"] for lap in laps) / busy if busy else None


def busy_seconds(folder: RunFolder) -> float:
    """Seconds of all steps and evaluations that were timed."""
    return sum(lap.get("seconds", 0.0) + lap.get("evaluation_seconds", 0.0) for lap in folder.timing())


def join_records(folder: RunFolder) -> list[dict[str, Any]]:
    """The lines of ``metrics.jsonl`` with what ``timing.jsonl`` says of the same step."""
    clock = {lap["step"]: lap for lap in folder.timing() if "images_per_second" in lap}
    return [{**clock.get(record["step"], {}), **record} if "loss" in record else record for record in folder.metrics()]
