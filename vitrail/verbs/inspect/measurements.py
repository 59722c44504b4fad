"""`vitrail inspect`: what a model, or two side by side, have learned, by the paper's own figures, as one page and as numbers."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vitrail.analysis.attention import attention_map, compute_reach
from vitrail.analysis.components import measure_components
from vitrail.analysis.cost import CostPoint, choose_sizes, measure_cost, measure_cost_by_patch
from vitrail.analysis.embeddings import (
    compute_line_similarity,
    compute_neighbour_rate,
    compute_position_similarity,
    compute_principal_filters,
    extract_filters,
    extract_position_embeddings,
    render_filters,
)
from vitrail.analysis.equivariance import (
    measure_map_equivariance,
    measure_permutation_response,
    measure_shift_response,
)
from vitrail.analysis.head_statistics import HeadFigures, HeadStatistics
from vitrail.analysis.locality import measure_locality
from vitrail.analysis.masks import measure_prototypes, measure_queries
from vitrail.analysis.offsets import compute_wavelengths, measure_offsets, pair_offsets
from vitrail.analysis.registers import add_register
from vitrail.analysis.render import to_thumbnail
from vitrail.analysis.rollout import relevance, rollout
from vitrail.analysis.tokens import find_neuron, find_onset, measure_norms
from vitrail.analysis.weight_changes import measure_changes
from vitrail.data.sources.bad_images import BadImages
from vitrail.data.sources.contents import choose_evenly
from vitrail.data.sources.open import open_data
from vitrail.data.sources.source import Source, choose_split
from vitrail.errors import DataError
from vitrail.files import dump_json, make_folder, replace_file
from vitrail.inference.options import InferenceOptions
from vitrail.inference.outputs import read_inputs
from vitrail.models import cost_of, device_of
from vitrail.models.config import IsotropicConfig
from vitrail.models.rope import is_rotary
from vitrail.reports.inspection.facts import (
    Biases,
    Filters,
    Inspection,
    Painted,
    Positions,
    Prototypes,
    Rotations,
    Sample,
    Tokens,
)
from vitrail.reports.inspection.findings import findings, norms_have_outliers
from vitrail.reports.inspection.numbers import numbers
from vitrail.reports.inspection.one_model import write_inspection
from vitrail.reports.inspection.pair import pair_numbers, write_pair
from vitrail.runtime.device import in_precision
from vitrail.runtime.machine import describe, versions
from vitrail.runtime.process import use_threads
from vitrail.runtime.progress import LogFunction, ProgressBar, to_stderr
from vitrail.tasks import Task
from vitrail.tasks.instances.segmenter import InstanceSegmenter
from vitrail.tasks.queries.task import QueryTask
from vitrail.text import sentence
from vitrail.weights.resolve import resolve_model

MAX_IMAGES = 512  # images that heads are measured on; the paper took 128
SAMPLES = 6  # images that are shown
PAINTED = 16  # images whose patches are shown by their components
SHOWN = 28  # principal components of the filters, as in the paper
MEASURED = 128  # images of which the norms of patches are measured
PAIRED = 32  # images that are moved, cut up and differentiated


def inspect_model(
    model: str | Path | Task,
    out: Path,
    data: Any = None,
    *,
    most: int = MAX_IMAGES,
    registers: int = 0,
    cost: bool = False,
    options: InferenceOptions = InferenceOptions(),
    command: str = "",
    log: LogFunction = to_stderr,
) -> tuple[Path, dict[str, Any]]:
    """Measures, and writes ``report.html``, ``numbers.json`` and the pictures into ``out``."""
    task = options.load(model, log)
    make_folder(out)
    results = measure_weights(task)
    if data is not None:
        results |= _measure_images(task, data, most, out, options, registers)
    if cost:
        log("measuring time and memory on one thread")
        with use_threads(1):  # CPU time of one thread depends little on other processes
            results["cost"] = measure_cost(task, choose_sizes(task.config))
            results["cost_by_patch"] = _measure_patch_costs(task.config, device_of(task))
    notes = []
    if data is None:
        notes.append("No images were given, so nothing that needs them could be measured; --data adds it.")
    elif registers:
        notes.append(
            "All that was measured on images is that of the model with a test-time register (see Patch norms)."
        )
    elif not results["heads"]:
        notes.append(f"{sentence(task.config.about)} has no attention to measure.")
    if is_rotary(task.config) and results.get("rotations") is None:
        notes.append("q and k are rotated by the place of a patch: what this gives is measured on images.")
    elif results["positions"] is None and not is_rotary(task.config):
        notes.append("No position embeddings are added to the patches of this model.")
    inspection = to_inspection(task, name_of(model), {**results, "notes": notes}, command)
    figures = numbers(inspection)
    replace_file(out / "numbers.json", dump_json(figures))
    return write_inspection(out, inspection), figures


def to_inspection(task: Task, title: str, results: Mapping[str, Any], command: str) -> Inspection:
    """Returns ``results``, the fields of an `Inspection`, with the findings that they decide and the facts of the run."""
    config = task.config
    counted, tokens = cost_of(config), results.get("tokens")
    known = findings(
        results.get("heads", ()), results["positions"], results.get("rotations"), is_rotary=is_rotary(config)
    )
    return Inspection(
        title=title,
        model=config.about,
        image_size=config.image_size,
        patch_size=config.patch_size if task.attention_grids(config.image_size) else None,
        parameters=counted.parameters,
        multiply_adds=counted.multiply_adds,
        findings=[*known, norms_have_outliers(tokens)] if tokens else known,
        command=command,
        machine=describe(),
        versions=versions(),
        date=date.today().isoformat(),
        **results,
    )


def name_of(model: str | Path | Task) -> str:
    """Returns what a page calls a model: the last part of its path, or its kind."""
    return sentence(model.config.about) if isinstance(model, Task) else resolve_model(model).name


def _measure_patch_costs(config: Any, device: torch.device) -> list[CostPoint]:
    """Measures models with patches half and twice as large, where patches can be chosen and there is one map."""
    if not isinstance(config, IsotropicConfig):
        return []
    height, width = config.patch_size
    sizes = [(height * factor // 2, width * factor // 2) for factor in (1, 2, 4)]
    fitting = [size for size in sizes if all(side and full % side == 0 for side, full in zip(size, config.image_size))]
    return measure_cost_by_patch(config, fitting, device)


def measure_weights(model: Task) -> dict[str, Any]:
    """Returns what needs no images: filters, and positions where there are such."""
    filters, positions = extract_filters(model), None
    components, explained = compute_principal_filters(filters, count=len(filters))
    pictures = render_filters(components[:SHOWN])
    if (embeddings := extract_position_embeddings(model)) is not None:
        positions = summarise_similarity(compute_position_similarity(embeddings))
    measured = Filters(pictures=pictures, explained=explained.cpu().numpy(), width=len(filters))
    return {"filters": measured, "positions": positions}


def summarise_similarity(similarity: Tensor) -> Positions:
    """Returns the figures of the similarity (h, w, h, w) of positions."""
    return Positions(
        similarity=similarity.cpu().numpy(),
        neighbour_rate=compute_neighbour_rate(similarity),
        neighbour_rate_with_corners=compute_neighbour_rate(similarity, reach=1.5),
        lines=compute_line_similarity(similarity),
    )


def measure_rotations(model: Task, source: Source, options: InferenceOptions, bad: BadImages) -> Rotations | None:
    """Measures rotary positions; None if no image can be read."""
    parts = [images for images, _ in _read_batches(model, source, options, bad)]
    if not parts:
        return None
    images = torch.cat(parts)
    layers = measure_offsets(model, images)
    kernels = torch.cat([layer.kernel for layer in layers])  # (L H, 2 h - 1, 2 w - 1)
    flat = kernels.flatten(1)
    spread = flat.std(1, keepdim=True).clamp(min=torch.finfo(flat.dtype).tiny)
    mean = ((flat - flat.mean(1, keepdim=True)) / spread).mean(0).unflatten(0, kernels.shape[1:])
    return Rotations(
        images=len(images),
        rule=model.config.rope,
        layers=layers,
        wavelengths=compute_wavelengths(model, model.preprocessing.size).numpy(),
        kernel=summarise_similarity(pair_offsets(mean)),
    )


def _measure_images(
    model: Task, data: Any, most: int, out: Path, options: InferenceOptions, registers: int
) -> dict[str, Any]:
    """Returns heads, samples and biases: all that needs images, of the model with a test-time register if there is one."""
    about, source = open_images(model, data, most)
    bad_list = out / "bad_images.csv"
    bad = options.record_bad(source, bad_list)
    some, few, shown = (source.subset(choose_evenly(len(source), count)) for count in (MEASURED, PAIRED, SAMPLES))
    register = None
    if registers and (batches := [images for images, _ in _read_batches(model, some, options, bad)]):
        with in_precision(options.precision, device_of(model)):
            model, register = add_register(model, batches, registers)
    has_attention = bool(model.attention_grids(model.preprocessing.size))
    heads, done = measure_heads(model, source, options, bad) if has_attention else ([], 0)
    biases = _measure_biases(model, few, options, bad)
    count = done if has_attention else biases.images if biases else 0
    if not count:
        raise DataError("none of the images could be read", f"see the reasons in {bad_list}")
    samples = _explain_samples(model, shown, options, bad) if has_attention and model.answers_classes else []
    rotations = measure_rotations(model, few, options, bad) if is_rotary(model.config) else None
    tokens = _measure_tokens(model, some, options, bad)
    painted = _paint(model, source.subset(choose_evenly(len(source), PAINTED)), options, bad)
    masks = _measure_masks(model, shown, options, bad)
    measured = {"samples": samples, "biases": biases, "heads": heads, "rotations": rotations, "tokens": tokens}
    return {"data": about, "images": count, "painted": painted, "register": register, **masks, **measured}


def _measure_tokens(model: Task, source: Source, options: InferenceOptions, bad: BadImages) -> Tokens | None:
    """Measures the norms of patches, and finds the neuron that makes outliers; None if no image can be read."""
    with in_precision(options.precision, device_of(model)):
        maps = measure_norms(model, (images for images, _ in _read_batches(model, source, options, bad)))
    if not maps:
        return None
    neuron, onset = None, find_onset(maps)
    if onset is not None:
        first = source.subset(choose_evenly(len(source), PAIRED))
        neuron = find_neuron(
            model, torch.cat([images for images, _ in _read_batches(model, first, options, bad)]), onset
        )
    return Tokens(maps=maps, after="block" if isinstance(model.config, IsotropicConfig) else "stage", neuron=neuron)


def _measure_masks(model: Task, source: Source, options: InferenceOptions, bad: BadImages) -> dict[str, Any]:
    """Returns the queries that answer on each image, or its prototypes; nothing for a task without masks of objects."""
    if not isinstance(model, QueryTask | InstanceSegmenter):
        return {}
    batches = list(_read_batches(model, source, options, bad))
    if not batches:
        return {}
    images, keys = torch.cat([images for images, _ in batches]), [str(key) for _, names in batches for key in names]
    pictures = [to_thumbnail(picture) for picture in model.preprocessing.denormalise(images).cpu().numpy()]
    with in_precision(options.precision, images.device):
        if isinstance(model, InstanceSegmenter):
            return {"prototypes": Prototypes(pictures=pictures, maps=measure_prototypes(model, images))}
        found = measure_queries(model, images)
    queries = [
        Sample(key=key, label=query.label, score=query.score, picture=picture, maps=query.maps)
        for key, picture, answers in zip(keys, pictures, found)
        for query in answers
    ]
    return {"queries": queries}


def _paint(model: Task, source: Source, options: InferenceOptions, bad: BadImages) -> Painted | None:
    """Returns images with the components of their patches; None where there are no components."""
    batches = [images for images, _ in _read_batches(model, source, options, bad)]
    with in_precision(options.precision, device_of(model)):
        components = measure_components(model, batches)
    if components is None:
        return None
    shown = [picture for images in batches for picture in model.preprocessing.denormalise(images).cpu().numpy()]
    return Painted(pictures=[to_thumbnail(picture) for picture in shown], components=components)


def open_images(model: Task, data: Any, most: int) -> tuple[str, Source]:
    """Returns a description of the data and up to ``most`` of their images, spread evenly, without targets."""
    splits = open_data(data, labelled=False, validation=0, channels=model.config.in_channels)
    split, source = choose_split(splits)
    named = str(data) if isinstance(data, str | Path) else ""
    about = ", ".join(filter(None, (named, split * (split != "train"))))
    return about, source.drop_targets().subset(choose_evenly(len(source), most))


def measure_heads(
    model: Task, source: Source, options: InferenceOptions, bad: BadImages
) -> tuple[list[HeadFigures], int]:
    """Returns the statistics of the heads of a model with attention, none without images, and the number of images."""
    statistics, done = HeadStatistics(model), 0
    with ProgressBar("looking", len(source), quiet=options.quiet) as show:
        for images, _ in _read_batches(model, source, options, bad):
            with in_precision(options.precision, images.device):
                statistics.add(images)
            done += len(images)
            show.update(done)
    return statistics.figures() if done else [], done


def _read_batches(
    model: Task, source: Source, options: InferenceOptions, bad: BadImages, **changes: Any
) -> Iterator[tuple[Tensor, list[str]]]:
    """Normalised images (B, C, H, W) on the model's device and their keys; ``changes`` are of the preprocessing."""
    few = replace(options, batch=min(options.batch, 32))
    for batch, images in read_inputs(model, source, few, bad=bad, **changes):
        yield images, batch.keys


def _explain_samples(model: Task, source: Source, options: InferenceOptions, bad: BadImages) -> list[Sample]:
    """Returns images with what counted in them, by each method that needs one pass."""
    samples, size = [], model.preprocessing.size
    grids = model.attention_grids(size)
    methods: Mapping[str, tuple[Callable[[Any, Tensor], Tensor], Any]] = {
        "attention": (attention_map, grids[-1].cell),
        "rollout": (rollout, grids[0].cell),
        "gradient": (relevance, grids[0].cell),
    }
    for images, keys in _read_batches(model, source, options, bad):
        with torch.no_grad():
            scores = model.probabilities(model(images))
        with in_precision(options.precision, images.device):
            maps = {name: method(model, images).float().cpu().numpy() for name, (method, _) in methods.items()}
        reach = {name: compute_reach(maps[name].shape[1:], cell, size) for name, (_, cell) in methods.items()}
        pictures = model.preprocessing.denormalise(images).cpu().numpy()
        for index, key in enumerate(keys):
            best = int(scores[index].argmax())
            samples.append(
                Sample(
                    key=str(key),
                    label=model.classes[best],
                    score=float(scores[index, best]),
                    picture=to_thumbnail(pictures[index]),
                    maps={name: heat[index] for name, heat in maps.items()},
                    reach=reach,
                )
            )
    return samples


def _measure_biases(model: Task, source: Source, options: InferenceOptions, bad: BadImages) -> Biases | None:
    """Measures what CNNs have by construction, on pictures a little larger than the model's window."""
    height, width = model.config.image_size
    # pixels by which a window must be able to move: whole patches, and a place of the coarsest map
    room = max(math.lcm(*model.config.patch_size), *map(max, model.config.cells))
    wide = model.preprocessing.at((height + room, width + room))
    parts = [images for images, _ in _read_batches(model, source, options, bad, preprocessing=wide)]
    if not parts:
        return None
    images = torch.cat(parts)
    windows = images[..., :height, :width]
    return Biases(
        images=len(images),
        shifts=measure_shift_response(model, images),
        maps=measure_map_equivariance(model, images),
        locality=measure_locality(model, windows[:8]),
        permutation=measure_permutation_response(model, windows),
    )


def inspect_pair(
    models: tuple[str | Path | Task, str | Path | Task],
    out: Path,
    data: Any = None,
    *,
    most: int = MAX_IMAGES,
    options: InferenceOptions = InferenceOptions(),
    command: str = "",
    log: LogFunction = to_stderr,
) -> tuple[Path, dict[str, Any]]:
    """Measures heads, positions and filters of two models, and writes ``report.html``, ``numbers.json`` and the pictures into
    ``out``.
    """
    tasks = [options.load(model, log) for model in models]
    make_folder(out)
    titles = [name_of(model) for model in models]
    if titles[0] == titles[1]:  # the whole of a path where both end alike, and a number where that is not enough
        titles = [title if isinstance(model, Task) else str(model) for title, model in zip(titles, models)]
    if titles[0] == titles[1]:
        titles = [f"{title} ({number})" for number, title in enumerate(titles, 1)]
    one, other = (
        _measure_one_of_pair(task, title, out, data, most, options, command) for task, title in zip(tasks, titles)
    )
    pair = replace(one, notes=_write_pair_notes((one, other), tasks, data)), other
    changes = measure_changes(tasks[0].backbone, tasks[1].backbone)
    figures = pair_numbers(pair, changes)
    replace_file(out / "numbers.json", dump_json(figures))
    return write_pair(out, pair, changes), figures


def _measure_one_of_pair(
    task: Task, title: str, out: Path, data: Any, most: int, options: InferenceOptions, command: str
) -> Inspection:
    """Measures one model. Images are read only if it has attention."""
    results = measure_weights(task)
    if data is not None and task.attention_grids(task.preprocessing.size):
        results["data"], source = open_images(task, data, most)
        bad_list = out / "bad_images.csv"
        results["heads"], results["images"] = measure_heads(task, source, options, options.record_bad(source, bad_list))
        if not results["images"]:
            raise DataError("none of the images could be read", f"see the reasons in {bad_list}")
    return to_inspection(task, title, results, command)


def _write_pair_notes(pair: tuple[Inspection, Inspection], tasks: Sequence[Task], data: Any) -> list[str]:
    """Notes on what cannot be compared, and why."""
    notes = []
    if data is None:
        notes.append("No images were given, so attention could not be measured; --data adds it.")
    for each, task in zip(pair, tasks):
        if not task.attention_grids(task.preprocessing.size):
            what = "it has no heads to compare, and the findings about them cannot be tested on it"
            notes.append(f"{each.title} has no attention: {what}.")
    if len({task.config.about for task in tasks}) > 1:
        notes.append(f"The models are of different kinds: {' and '.join(task.config.about for task in tasks)}.")
    if len({each.image_size for each in pair}) > 1:
        sizes = (f"{' × '.join(map(str, each.image_size))} ({each.title})" for each in pair)
        notes.append(f"The models take images of different sizes: {', '.join(sizes)} pixels.")
    return notes
