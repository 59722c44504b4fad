"""`vitrail explain`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from vitrail.cli.inference_flags import InferenceFlags


def explain(
    model: str,
    /,
    *inputs: str,
    out: Path | None = None,
    method: Literal["attention", "rollout", "gradient", "occlusion"] = "attention",
    layer: int = -1,
    head: str = "mean",
    target: str | None = None,
    faithfulness: Annotated[bool, Parameter(negative="")] = False,
    json: Annotated[bool, Parameter(negative="")] = False,
    using: InferenceFlags = InferenceFlags(),
) -> None:
    """Show what the answers for images rest on: overlays, contact sheets of heads, and the numbers.

    Parameters
    ----------
    model
        A run directory, `latest`, a model folder, or a .safetensors file.
    inputs
        Files, folders, globs, a manifest, or - for paths on standard input.
    out
        The folder for overlays (.png), heads (.png), numbers (.npz and .json).
    method
        attention of one layer; rollout through all layers; gradient-weighted relevance; occlusion.
    layer
        Whose attention, from 0, or from the end: -1 is the last; of other methods only the sheet of heads.
    head
        With --method attention: a number from 0, mean, or all for an overlay of each.
    target
        The class to explain, by name; by default what the model answers.
    faithfulness
        Judge all methods by deletion and insertion instead, and print the table.
    json
        JSON lines on stdout; with --faithfulness one JSON object on the last line.
    """
    from vitrail.analysis.explanation import ExplainOptions

    options = using.reading_images(max_bad="100%")
    how = ExplainOptions(
        method=method, layer=layer, head=int(head) if head.removeprefix("-").isdecimal() else head, target=target
    )
    if faithfulness:
        _judge(model, inputs, how=how, json=json, classes=using.classes, options=options)
        return
    from vitrail.errors import ConfigError
    from vitrail.reports.tables import open_table
    from vitrail.workflows.explain import explain as explained

    if out is None:
        raise ConfigError("there is no folder for the pictures", "give --out FOLDER")
    answers = explained(model, inputs or ("-",), out, how=how, classes=using.classes, options=options)
    with open_table(None, "jsonl" if json else "csv") as table:
        for answer in answers:
            table.write(answer.row())


def _judge(model: str, inputs: tuple[str, ...], *, json: bool, **how) -> None:
    from vitrail.cli.output import columns, one_line
    from vitrail.workflows.explain_faithfulness import faithfulness

    images, scores = faithfulness(model, inputs or ("-",), **how)
    if json:
        print(
            one_line({"images": images, **{name: value for each in scores for name, value in each.figures().items()}})
        )
        return

    def gain(of: tuple[float, float, float] | None) -> str:
        return "" if of is None else "{:+.4f} [{:+.4f}, {:+.4f}]".format(*of)

    rows = (
        (
            each.method,
            f"{each.deletion:.4f}",
            gain(each.deletion_gain),
            f"{each.insertion:.4f}",
            gain(each.insertion_gain),
        )
        for each in scores
    )
    print(columns(rows, ("method", "deletion", "against random", "insertion", "against random")))
    over, brackets = ("1 image", "") if images == 1 else (f"{images:,} images", "; in brackets 95 % intervals")
    print(f"over {over}; of deletion less is better, of insertion more{brackets}")
