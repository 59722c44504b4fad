"""`vitrail probe`: evaluates the frozen features of a model on labelled images, by a protocol that trains almost nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal, Unpack

from vitrail.config.units import whole_numbers
from vitrail.runtime.progress import log_nothing, to_stderr
from vitrail.verbs import options
from vitrail.verbs.devices import Devices, join_ranks, launch_again
from vitrail.verbs.verb import verb

if TYPE_CHECKING:
    from vitrail.verbs.probe.protocols import Probe


@verb("protocol", "against")
def probe(
    model: options.AnyModel,
    data: options.Data,
    protocol: Annotated[
        Literal["linear", "knn", "fewshot"],
        "linear (logistic regression), knn (nearest neighbours) or fewshot (least squares on a few images of each class).",
    ] = "linear",
    *,
    k: options.Neighbours = 20,
    shots: options.Shots = "1,5,10,25",
    seeds: Annotated[int, "Number of random draws of the shots."] = 5,
    against: Annotated[Any, "Another model, read as its own weights say, to compare with on the same images."] = None,
    cache: options.Cache = True,
    log: options.Log = to_stderr,
    ranks: options.SharedWork = None,
    **given: Unpack[options.TunedReading],
) -> Probe:
    """Evaluates a model by its frozen features: a linear classifier, nearest neighbours, or a few shots.

    It trains on the split train and evaluates on test, else val, else what was held out when the model was trained on these
    data, else 15 % of each class held out of train. The data need not have the model's classes, and the model needs no head.

    Raises:
        ConfigError: an unknown protocol, or numbers that do not fit the data.
        DataError: several labels an image, unlabelled images, fewer than two classes, or nothing to evaluate on.
        CheckpointError: of the weights, or features that are not finite.
    """
    reading = options.parse(given)
    from vitrail.inference.options import InferenceOptions
    from vitrail.runtime.distributed import SINGLE
    from vitrail.verbs.probe.protocols import (
        ProbeProtocol,
        choose_images,
        compute_features,
        evaluate_features,
        keep_shared,
        open_to_probe,
        warn_of_training_images,
    )

    ranks = ranks or SINGLE
    log = log if ranks.first else log_nothing
    with ranks.share_errors():
        settings = ProbeProtocol(protocol=protocol, k=k, shots=whole_numbers(shots), seeds=seeds)
        models = [reading.load(model, log)]
        if against is not None:
            models.append(InferenceOptions(device=reading.device).load(against, log))
        splits = open_to_probe(data, models[0])
        train, split, evaluated = choose_images(splits)
        settings.check(train.labels)
        log(f"data     {splits.layout}")
        for loaded in models:
            warn_of_training_images(loaded, data, splits, log)
    log(f"split    learns from train: {len(train):,} images; evaluated on {split}: {len(evaluated):,}")
    both = {"train": train, split: evaluated}
    how = {"options": reading, "cache": options.choose_cache(cache), "log": log, "ranks": ranks}
    features = zip(*(compute_features(loaded, both, **how) for loaded in models))
    shared = [keep_shared(of_source) for of_source in features]
    return ranks.run_on_rank0(lambda: evaluate_features(settings, split, *shared, log=log))


def run(model: str, data: str, /, *, devices: Devices = None, json: options.AsJson = False, **given: Any) -> int:
    from vitrail.verbs.printing import columns, one_line, print_beside

    if (code := launch_again(devices)) is not None:
        return code
    with join_ranks(given.get("device")) as ranks:
        result = probe(model, data, ranks=ranks, **given)
    if not ranks.first:
        return 0
    head, rows = result.table()
    print_beside(json)(columns(rows, head))
    if json:
        print(one_line(result.to_dict()))
    return 0
