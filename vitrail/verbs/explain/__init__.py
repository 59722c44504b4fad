"""`vitrail explain`: explanations of predictions, as pictures and numbers; or how well the methods explain a model."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Unpack

from vitrail.config.units import split_commas
from vitrail.errors import ConfigError
from vitrail.runtime.progress import to_stderr
from vitrail.verbs import options
from vitrail.verbs.verb import verb

if TYPE_CHECKING:
    from vitrail.analysis.explanation import Explanation
    from vitrail.inference.results import Results
    from vitrail.verbs.explain.scores import Localisation, MethodScore


@verb("method", "target", "layer", "out")
def explain(
    model: options.NetworkModel,
    inputs: options.Inputs,
    *,
    out: Annotated[
        options.File | None, "The folder for overlays (.png), heads (.png), numbers (.npz and .json)."
    ] = None,
    method: Annotated[
        Literal["attention", "rollout", "gradient", "occlusion", "similarity"],
        "attention of one layer; rollout through all layers; gradient-weighted relevance; occlusion; similarity of all patches "
        "to one.",
    ] = "attention",
    layer: Annotated[
        int, "Attention layer from 0, or from the end with -1; other methods use it for the sheet of heads only."
    ] = -1,
    head: Annotated[
        int | str, "With --method attention: a head from 0, mean, or all for an overlay of each head."
    ] = "mean",
    patch: Annotated[
        str | Sequence[int] | None,
        "With --method similarity: row,column of the patch that is compared with all, from 0; by default the centre.",
    ] = None,
    target: Annotated[
        str | None, "The class to explain, by name: by default the predicted one, of a segmenter the largest."
    ] = None,
    box: Annotated[
        int | None,
        "Of a detector: the object to explain, from 0 as `vitrail predict` lists them; by default the best one.",
    ] = None,
    faithfulness: Annotated[
        bool, "Evaluate all methods by deletion and insertion instead, and print the table."
    ] = False,
    masks: Annotated[
        options.File | None,
        "A folder with a mask of the objects for each image, PNG by the same name: print how much attention lies inside.",
    ] = None,
    log: options.Log = to_stderr,
    **given: Unpack[options.Reading],
) -> Results[Explanation] | Any:
    """Explains the predictions for images: overlays, contact sheets of heads, and the numbers.

    Returns:
        An iterator, which explains one image after another, and writes its files, as it is read: take a ``list`` of it. With
        ``faithfulness`` the number of images and the scores of every method; with ``masks`` `Localisation`.

    Raises:
        ConfigError: an unknown head or class; a method that needs attention for a model without it; a box or class that is
            not on an image.
        DataError: an input that does not exist, or a mask that does not fit its image.
        DiskError: ``out`` cannot be written.
    """
    reading = options.parse(given, max_bad=options.ALL)
    if isinstance(head, str) and head.removeprefix("-").isdecimal():
        head = int(head)
    chosen = None if patch is None else split_commas(patch)
    if chosen is not None and (len(chosen) != 2 or not all(str(place).isdecimal() for place in chosen)):
        raise ConfigError(f"the patch is {patch!r}", "give row,column, such as 3,4")
    place = None if chosen is None else (int(chosen[0]), int(chosen[1]))
    from vitrail.analysis.explanation import ExplainOptions
    from vitrail.verbs.explain.scores import measure_faithfulness, measure_localisation
    from vitrail.verbs.explain.write import explain_inputs

    asked = ExplainOptions(method=method, layer=layer, head=head, target=target, box=box, patch=place)
    how: dict[str, Any] = {"inference": reading, "log": log}
    paths, folder = options.list_inputs(inputs), options.to_path(out)
    if masks is not None:
        if faithfulness:
            raise ConfigError("--masks and --faithfulness are two tables", "give one of them")
        return measure_localisation(model, paths, Path(masks), out=folder, **how)
    if faithfulness:
        return measure_faithfulness(model, paths, options=asked, **how)
    if folder is None:
        raise ConfigError("there is no folder for the pictures", "give --out FOLDER")
    return explain_inputs(model, paths, folder, options=asked, **how)


def run(
    model: str,
    /,
    *inputs: str,
    json: Annotated[
        bool, "JSON lines on stdout; with --faithfulness or --masks one JSON object on the last line."
    ] = False,
    **given: Any,
) -> None:
    from vitrail.verbs.predict import write_rows

    result: Any = explain(model, inputs or ("-",), **given)
    if given.get("masks") is not None:
        _print_localisation(result, json=json)
    elif given.get("faithfulness"):
        _print_scores(*result, json=json)
    else:
        write_rows(result, kind="jsonl" if json else "csv")


def _print_scores(images: int, scores: list[MethodScore], *, json: bool) -> None:
    from vitrail.verbs.printing import columns, one_line

    if json:
        figures = {name: value for score in scores for name, value in score.figures().items()}
        print(one_line({"images": images, **figures}))
        return
    print(columns((score.row() for score in scores), scores[0].HEAD))
    over, brackets = ("1 image", "") if images == 1 else (f"{images:,} images", "; in brackets 95 % intervals")
    print(f"over {over}; of deletion less is better, of insertion more{brackets}")


def _print_localisation(result: Localisation, *, json: bool) -> None:
    from vitrail.text import plural
    from vitrail.verbs.printing import columns, one_line

    if json:
        print(one_line(result.figures()))
        return
    print(columns((score.row() for score in result.scores), result.scores[0].HEAD))
    over = plural(len(result.rows), "image")
    print(f"over {over} whose masks cover {result.area:.1%} of what the model sees; in brackets 95 % intervals")
    print(f"{ {True: 'true', False: 'false', None: 'not clear'}[result.holds]:10}{result.CLAIM}")
