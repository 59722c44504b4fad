"""The verbs for Python that look inside a model: `explain` and `inspect`, as `vitrail.workflows.api` has the others."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from vitrail.config.flags_inference import ExplainFlags, InspectFlags
from vitrail.config.keywords import takes
from vitrail.config.units import size_in_pixels, split_commas
from vitrail.errors import ConfigError
from vitrail.runtime.progress import Say, to_stderr
from vitrail.workflows.api_options import ALL, list_inputs, parse_options, to_path

if TYPE_CHECKING:
    from vitrail.analysis.explanation import Explanation
    from vitrail.inference.results import Results
    from vitrail.tasks.classification.classifier import Classifier

    Model = str | Path | Classifier
    Inputs = str | Path | Sequence[str | Path]


@takes(ExplainFlags)
def explain(
    model: Model, inputs: Inputs, *, log: Say = to_stderr, **flags: Unpack[ExplainFlags]
) -> Results[Explanation] | Any:
    """Explains the predictions for images, as maps and, in the folder ``out``, as pictures and numbers.

    Args:
        model: anything `vitrail.load` takes, or a `Classifier`.
        inputs: files, folders, globs or a manifest.

    Returns:
        An iterator, which explains one image after another, and writes its files, as it is read: take a ``list`` of it. With
        ``faithfulness`` the number of images and the scores of every method; with ``masks`` `Localisation`.
    """
    from vitrail.analysis.explanation import ExplainOptions

    head = flags["head"]
    if isinstance(head, str) and head.removeprefix("-").isdecimal():
        head = int(head)
    own: dict[str, Any] = {name: flags[name] for name in ("method", "layer", "target", "box")}
    options = ExplainOptions(head=head, **own)
    reading = parse_options(flags, max_bad=ALL)
    question: dict[str, Any] = {"options": options, "inference": reading["options"], "classes": reading["classes"]}
    if flags["masks"] is not None:
        from vitrail.workflows.explain_masks import judge_by_masks

        if flags["faithfulness"]:
            raise ConfigError("--masks and --faithfulness are two tables", "give one of them")
        del question["options"]  # all methods and layers, of the predicted class
        out = to_path(flags["out"])
        return judge_by_masks(model, list_inputs(inputs), Path(flags["masks"]), out=out, **question, say=log)
    if flags["faithfulness"]:
        from vitrail.workflows.explain_faithfulness import faithfulness as judge

        return judge(model, list_inputs(inputs), **question, say=log)
    from vitrail.workflows.explain import explain as compute

    if flags["out"] is None:
        raise ConfigError("there is no folder for the pictures", "give --out FOLDER")
    return compute(model, list_inputs(inputs), Path(flags["out"]), **question, say=log)


@takes(InspectFlags)
def inspect(
    model: Model | list[Model] | tuple[Model, ...],
    *,
    command: str = "vitrail.inspect",
    log: Say = to_stderr,
    **flags: Unpack[InspectFlags],
) -> tuple[Path, dict[str, Any]]:
    """Inspects a model: the paper's figures of its filters, positions and heads, on one page and as numbers.

    With ``against``, it sets the heads, positions and filters of two models side by side. With ``cost`` and several models, or
    with ``sizes``, it compares their speed, memory and largest batch instead.

    Args:
        model: anything `vitrail.load` takes, or a `Classifier`. Several of them are compared; those may also be names of
            models, such as "vit-b16", with random weights.
        command: how the report names the call.

    Returns:
        The path of the report, and the numbers.

    Raises `ConfigError` for several models without ``cost`` or with ``against``, `DataError` if none of the images could be
    read, and `DiskError` if ``out`` cannot be written.
    """
    out, models = Path(flags["out"]), [*model] if isinstance(model, list | tuple) else [model]
    parsed: dict[str, Any] = {**parse_options(flags), "command": command, "say": log}
    if flags["against"] is not None:
        from vitrail.workflows.inspect_pair import inspect_pair

        if len(models) != 1 or flags["cost"]:
            raise ConfigError(
                "--against sets one model against one other, by what they have learned",
                "give one model and no --cost; vitrail inspect MODEL OTHER --cost compares speed and memory",
            )
        return inspect_pair((models[0], flags["against"]), out, flags["data"], most=flags["most"], **parsed)
    if len(models) != 1 or flags["sizes"] is not None or flags["cost_batch"] is not None:
        from vitrail.workflows.inspect_cost import SIZES, compare_costs

        if not flags["cost"]:
            raise ConfigError(
                "several models, sizes and a cost batch are for --cost alone", "add --cost, or leave them out"
            )
        if flags["data"] is not None:
            raise ConfigError("a comparison of cost takes no --data", "inspect one model without --sizes")
        sizes = SIZES if flags["sizes"] is None else [size_in_pixels(size) for size in split_commas(flags["sizes"])]
        return compare_costs(models, out, sizes=sizes, batch=flags["cost_batch"], **parsed)
    from vitrail.workflows.inspect import inspect as look

    return look(models[0], out, flags["data"], most=flags["most"], cost=flags["cost"], **parsed)
