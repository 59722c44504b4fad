"""`vitrail probe`."""

from __future__ import annotations

from typing import Annotated, Literal

from cyclopts import Parameter

from vitrail.cli.inference_flags import InferenceFlags


def probe(
    model: str,
    data: str,
    /,
    *,
    protocol: Literal["linear", "knn", "fewshot"] = "linear",
    k: int = 20,
    shots: Annotated[str, Parameter(help="Images of each class, with commas between.")] = "1,5,10,25",
    seeds: int = 5,
    against: str | None = None,
    cache: bool = True,
    json: Annotated[bool, Parameter(negative="")] = False,
    using: InferenceFlags = InferenceFlags(),
) -> None:
    """Judge what a model has learned by its frozen features: a linear classifier, nearest neighbours, or a few shots.

    It learns from the split train and is judged on test, else val, else a part held out of train.

    Parameters
    ----------
    model
        A run directory, `latest`, a model folder, a .safetensors file, or an .onnx of `vitrail export`. It needs no head.
    data
        What `vitrail train` takes; its classes need not be the model's.
    protocol
        linear (logistic regression), knn (nearest neighbours) or fewshot (least squares on a few images of each class).
    k
        Neighbours that vote.
    seeds
        How often the shots are drawn.
    against
        Another model, to say by how much the first is better on the same images.
    cache
        Keep the features in VITRAIL_CACHE, or ~/.cache/vitrail/features, and take them from there.
    json
        One JSON object on the last line of stdout.
    """
    from vitrail.cli.output import columns, one_line, whole_numbers
    from vitrail.inference.features import default_cache
    from vitrail.runtime.process import use_all_cores
    from vitrail.workflows.probe import probe as judge

    use_all_cores()
    found = judge(
        model,
        data,
        protocol,
        k=k,
        shots=whole_numbers(shots),
        seeds=seeds,
        against=against,
        classes=using.classes,
        options=using.reading_images(max_bad="1%"),
        cache=default_cache() if cache else None,
    )
    head, rows = found.table()
    print(columns(rows, head))
    if json:
        print(one_line({"protocol": found.protocol, "split": found.split, **found.figures}))
