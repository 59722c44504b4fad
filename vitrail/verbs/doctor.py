"""`vitrail doctor`: what this machine has."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from vitrail.verbs.verb import verb


@verb()
def doctor(
    *,
    tune: Annotated[
        Literal["show", "clear"] | None,
        "Show what was measured to choose precision and threads, network by network, or clear it, so that the next training "
        "measures again.",
    ] = None,
) -> Mapping[str, object]:
    """Reports on this machine: versions, devices, optional packages, disk, caches, and a numeric self-check."""
    from vitrail.inference.features import describe_cache
    from vitrail.runtime.machine import examine
    from vitrail.runtime.tuning import forget_choices, list_choices
    from vitrail.text import plural

    if tune == "clear":
        return {"removed": forget_choices()}
    if tune == "show":
        return list_choices()
    return {**examine(), "feature cache": describe_cache(), "tuning cache": plural(len(list_choices()), "network")}


def run(
    *, json: Annotated[bool, "One JSON object on the last line of stdout, for a bug report."] = False, **given: Any
) -> None:
    from vitrail.verbs.printing import columns, one_line

    facts = doctor(**given)
    print(one_line(facts) if json else columns(facts.items()) or "nothing was measured yet")
