"""`vitrail explain`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from vitrail.cli.takes_flags import takes_flags
from vitrail.config.flags_inference import ExplainFlags

if TYPE_CHECKING:
    from vitrail.workflows.explain_faithfulness import MethodScore
    from vitrail.workflows.explain_masks import Localisation

Json = Annotated[
    bool,
    Parameter(
        negative="", help="JSON lines on stdout; with --faithfulness or --masks one JSON object on the last line."
    ),
]


@takes_flags(ExplainFlags)
def explain(model: str, /, *inputs: str, json: Json = False, **flags: Any) -> None:
    """Explain the predictions for images: overlays, contact sheets of heads, and the numbers.

    Parameters
    ----------
    model
        A run directory, `latest`, a model folder, weights (.safetensors, .pth, .npz), or hf:owner/name.
    inputs
        Files, folders, globs, a manifest, or - for paths on standard input.
    """
    from vitrail.verbs.predict import write_rows
    from vitrail.workflows.api_inspecting import explain as answer

    result: Any = answer(model, inputs or ("-",), **flags)
    if flags.get("masks") is not None:
        _print_localisation(result, json=json)
        return
    if flags.get("faithfulness"):
        _print_scores(*result, json=json)
        return
    write_rows(result, kind="jsonl" if json else "csv")


def _print_scores(images: int, scores: list[MethodScore], *, json: bool) -> None:
    from vitrail.cli.output import columns, one_line

    if json:
        figures = {name: value for score in scores for name, value in score.figures().items()}
        print(one_line({"images": images, **figures}))
        return
    print(columns((score.row() for score in scores), scores[0].HEAD))
    over, brackets = ("1 image", "") if images == 1 else (f"{images:,} images", "; in brackets 95 % intervals")
    print(f"over {over}; of deletion less is better, of insertion more{brackets}")


def _print_localisation(result: Localisation, *, json: bool) -> None:
    from vitrail.cli.output import columns, one_line
    from vitrail.text import plural

    if json:
        print(one_line(result.figures()))
        return
    print(columns((score.row() for score in result.scores), result.scores[0].HEAD))
    over = plural(len(result.rows), "image")
    print(f"over {over} whose masks cover {result.area:.1%} of what the model sees; in brackets 95 % intervals")
    print(f"{ {True: 'true', False: 'false', None: 'not clear'}[result.holds]:10}{result.CLAIM}")
