"""`vitrail transfer`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from vitrail.cli.inference_flags import InferenceFlags


def transfer(
    model: str,
    /,
    *data: str,
    out: Path,
    protocols: Annotated[
        str, Parameter(help="Some of knn, linear, fewshot, finetune.")
    ] = "knn,linear,fewshot,finetune",
    k: int = 20,
    shots: Annotated[str, Parameter(help="Images of each class, with commas between.")] = "1,5,10,25",
    epochs: float | None = None,
    steps: int | None = None,
    seeds: int = 1,
    set: Annotated[
        list[str] | None, Parameter(help="One setting of the fine-tuning, e.g. --set optim.lr=1e-4.")
    ] = None,
    cache: bool = True,
    json: Annotated[bool, Parameter(negative="")] = False,
    using: InferenceFlags = InferenceFlags(),
) -> int:
    """Judge a model on several data sets, by its frozen features and by fine-tuning: one table, and the mean over data sets.

    Running the same command again goes on where it stopped.

    Parameters
    ----------
    model
        A run directory, `latest`, a model folder, a .safetensors file, or an .onnx of `vitrail export`.
    data
        Data sets, each what `vitrail train` takes.
    out
        The folder for transfer.csv, transfer.md, report.html and the runs of the fine-tuning.
    k
        Neighbours that vote.
    epochs
        How often every image is seen in fine-tuning; by default as the recipe finetune has it.
    steps
        How many updates fine-tuning makes.
    seeds
        How often each data set is fine-tuned; the figure is the mean.
    cache
        Keep the features in VITRAIL_CACHE, or ~/.cache/vitrail/features, and take them from there.
    json
        One JSON object on the last line of stdout.
    """
    import shlex
    import sys

    from vitrail.cli.output import columns, one_line, whole_numbers
    from vitrail.inference.features import default_cache
    from vitrail.runtime.process import use_all_cores
    from vitrail.workflows.transfer import Tuning
    from vitrail.workflows.transfer import transfer as judge

    use_all_cores()
    found = judge(
        model,
        data,
        out,
        protocols=[each.strip() for each in protocols.split(",")],
        k=k,
        shots=whole_numbers(shots),
        tuning=Tuning(epochs=epochs, steps=steps, settings=tuple(set or ()), seeds=seeds),
        classes=using.classes,
        options=using.reading_images(max_bad="1%"),
        cache=default_cache() if cache else None,
        command=shlex.join(["vitrail", *sys.argv[1:]]),
    )
    print(columns(found.table(), ["data", *found.protocols]))
    print(f"report: {out / 'report.html'}")
    for where, cell in found.failures.items():
        print(f"error: {where}: {cell.error}", file=sys.stderr)
    if json:
        # JSON has no NaN: a mean that a failure leaves undefined is null
        means = {f"mean_{each}": mean if (mean := found.mean(each)) == mean else None for each in found.protocols}
        print(one_line({"data_sets": len(found.rows), "failed": len(found.failures), **means}))
    return found.code
