"""Reading and writing folders of transformers: config.json, tensors by its names, preprocessor_config.json.

What tensors do not determine (heads, the type of GELU, eps) is read from config.json, or is transformers' default. Each
architecture has a file with a table of names and two functions.
"""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from vitrail.data.preprocessing import Preprocessing
from vitrail.errors import CheckpointError, VitrailError
from vitrail.models import ARCHITECTURES, Config, ViTConfig
from vitrail.tasks.classification.classifier import Classifier
from vitrail.tasks.queries.task import QueryTask
from vitrail.tasks.task import check_classes
from vitrail.text import printable
from vitrail.weights.description import KEY, OWN, check_version, describe
from vitrail.weights.huggingface import eomt, pyramids, vit
from vitrail.weights.huggingface.family import Family
from vitrail.weights.huggingface.processor import from_processor, to_processor
from vitrail.weights.layout import Weights, leave_out, refuse
from vitrail.weights.names import State
from vitrail.weights.tensors import OTHER

FAMILIES: dict[str, Family] = {
    family.model_type: family for family in (*vit.FAMILIES, vit.BEIT, *pyramids.FAMILIES, *eomt.FAMILIES)
}
# names of their first layers; `find_network` finds a network in a checkpoint by these
FIRST_LAYERS = tuple(dict.fromkeys(name for family in FAMILIES.values() for name in family.first_layers))
PROCESSOR = "preprocessor_config.json"
MULTI_LABEL = "multi_label_classification"


class Folder(NamedTuple):
    """The content of a folder of transformers: tensors by its names, config.json, preprocessor_config.json, and notes for
    the user on what these cannot express.
    """

    tensors: dict[str, Tensor]
    config: dict[str, Any]
    preprocessor: dict[str, Any]
    notes: list[str]


def read_huggingface(
    tensors: dict[str, Tensor], described: Mapping[str, Any], preprocessor: Mapping[str, Any], path: Path
) -> Weights:
    """Converts the content of a folder of transformers.

    Args:
        described: its config.json.
        preprocessor: its preprocessor_config.json, ``{}`` if there is none.
        path: for messages.

    Raises:
        CheckpointError: the architecture or a value is unsupported or invalid.
    """
    family = _family(described, path)
    state, unused = family.to_own_names(tensors)
    with _explaining(path):
        config = family.read_config(described, state)
        own_classes = eomt.count_classes(state)
        classes, renamed = _classes(described.get("id2label"), config.classes or own_classes)
    of_task = eomt.OWN_MODULES if family.read_task else ()
    state, beside = leave_out(config, state, inside=family.inside(tensors) + of_task)
    preprocessing, assumed = from_processor(preprocessor, family.processor, config, path)
    weights = Weights(
        layout="Hugging Face",
        config=family.set_size(config, preprocessing),
        tensors=state,
        preprocessing=preprocessing,
        classes=classes,
        own_classes=own_classes,
        multi_label=described.get("problem_type") == MULTI_LABEL,
        assumed=(*assumed, *renamed),
        unused=(*unused, *beside),
    )
    with _explaining(path):
        fields = {**family.defaults, **described}
        weights = family.complete(weights, fields, tensors)
        if family.read_task is not None:
            weights = family.read_task(weights, fields, preprocessor, state)
    if KEY not in described:
        return weights
    return merge_description(described[KEY], tensors, weights, family, processed=bool(preprocessor), path=path)


@contextmanager
def _explaining(path: Path) -> Iterator[None]:
    """Names the folder in errors of its config.json."""
    try:
        yield
    except CheckpointError as error:
        raise CheckpointError(f"{path} cannot be read: {error.what}", error.remedy) from error
    except (LookupError, TypeError, ValueError, OverflowError, RuntimeError) as error:
        what = f"the model of config.json in {path} cannot be built: {printable(error, 300)}"
        raise CheckpointError(what, OTHER) from error


def to_huggingface(model: Classifier | QueryTask) -> Folder:
    """The inverse of `read_huggingface`; the classes of transformers compute the same logits from it. A model with queries is one
    of `eomt.express_model`.

    Raises:
        CheckpointError: a part of the model or the preprocessing has no counterpart in transformers.
    """
    of_queries = isinstance(model, QueryTask)
    family = FAMILIES[eomt.model_type_of(model) if of_queries else _model_type_of(model.config)]
    config, changed = family.express(model.config)
    fields, differences = family.write_config(config)
    own = {f"{OWN}{name}": tensor for name, tensor in model.own.state_dict().items()}
    state = {name: tensor.detach().cpu() for name, tensor in {**model.backbone.state_dict(), **own}.items()}
    state = family.express_state(model.config, state)
    tensors = family.to_transformers_names(state, has_body=bool(model.classes) and not of_queries)
    tensors = {name: tensor.clone(memory_format=torch.contiguous_format) for name, tensor in tensors.items()}
    processor, roundings = to_processor(model.preprocessing, family.processor)
    notes = [*changed, *differences, *roundings]
    labels = {
        "id2label": {str(index): name for index, name in enumerate(model.classes)},
        "label2id": {name: index for index, name in enumerate(model.classes)},
    }
    described = {
        **fields,
        **(eomt.write_task(model) if of_queries else {}),
        **(labels if model.classes else {}),
        **({"problem_type": MULTI_LABEL} if model.multi_label else {}),
        KEY: {**describe(model), "digest": digest(tensors)},
    }
    if model.temperature not in (None, 1):
        notes.append(f"the temperature {model.temperature:g} is not applied by transformers")
    return Folder(tensors, described, processor, notes)


def _family(described: Mapping[str, Any], path: Path) -> Family:
    model_type = described.get("model_type")
    if not isinstance(model_type, str) or model_type not in FAMILIES:
        name = printable(repr(model_type or described.get("architectures")))
        what = f"{path} is a folder of Hugging Face transformers with the unsupported model type {name}"
        raise CheckpointError(what, f"supported types: {', '.join(FAMILIES)}")
    return FAMILIES[model_type]


def _model_type_of(config: Config) -> str:
    if isinstance(config, ViTConfig):
        return vit.model_type_of(config)
    model_type = config.architecture.replace("-", "_")
    refuse("transformers", {config.about: model_type not in FAMILIES})
    return model_type


def _classes(labels: Any, outputs: int) -> tuple[tuple[str, ...] | None, list[str]]:
    """Returns the names of ``id2label``, or None if they are only numbers, and a note on changed names.

    Duplicate names, such as the two cranes of ImageNet, get their number appended.
    """
    if not isinstance(labels, Mapping) or labels.keys() != {str(index) for index in range(outputs)}:
        return None, []
    names = [str(labels[str(index)]) for index in range(outputs)]
    if not outputs or names == [f"LABEL_{index}" for index in range(outputs)]:
        return None, []
    twice = {name for name, count in Counter(names).items() if count > 1}
    numbered = [f"{name} ({index})" if name in twice else name for index, name in enumerate(names)]
    return tuple(numbered), [f"numbers after the {len(twice)} class names that appear twice"] if twice else []


OTHERWISE = "vitrail's description in config.json does not match the weights or settings and was ignored"


def digest(tensors: State) -> str:
    """Returns the SHA-256 of names, types, shapes and values, independent of order and sharding."""
    sha256 = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        sha256.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        sha256.update(tensor.contiguous().view(-1).view(torch.uint8).numpy().data)
    return sha256.hexdigest()


def merge_description(
    description: Any, tensors: State, weights: Weights, family: Family, *, processed: bool, path: Path
) -> Weights:
    """Completes ``weights``, as described by transformers' files, with the details of vitrail's description.

    Args:
        description: the value of the key; untrusted.
        tensors: all tensors of the file, by transformers' names.
        processed: whether there is a preprocessor_config.json, which takes precedence.
    """
    known = None
    with suppress(VitrailError, KeyError, TypeError, ValueError, AttributeError, OverflowError):
        known = _apply_description(description, weights, family, path)
    if known is None or description.get("digest") != digest(tensors):
        return replace(weights, assumed=(*weights.assumed, OTHERWISE))
    if not processed:
        return known
    written = None
    with suppress(CheckpointError):  # of a preprocessing that transformers cannot express
        fields, _ = to_processor(known.preprocessing, family.processor)
        written, _ = from_processor(fields, "ViT", known.config, path)
    return known if written == weights.preprocessing else replace(known, preprocessing=weights.preprocessing)


def _apply_description(description: Any, weights: Weights, family: Family, path: Path) -> Weights | None:
    """Returns ``weights`` as described, or None if transformers would read a different model from it."""
    check_version(description, path)
    config = ARCHITECTURES[description["architecture"]].from_dict(description["config"])
    fields, _ = family.write_config(family.express(config)[0])
    classes = weights.classes or check_classes(description["classes"], outputs=weights.outputs)
    temperature = 1.0 if weights.task else float(description["temperature"])
    read = family.set_size(family.read_config(fields, weights.tensors), weights.preprocessing)
    if read != weights.config or not 0 < temperature < math.inf:
        return None
    task = weights.task and {**description, **{name: weights.task[name] for name in ("head", *eomt.COUNTS)}}
    tensors = family.restore_state(config, weights.tensors)
    preprocessing = Preprocessing.from_dict(description["preprocessing"])
    changes = {"config": config, "tensors": tensors, "preprocessing": preprocessing, "temperature": temperature}
    return replace(weights, **changes, classes=classes or None, task=task, assumed=())
