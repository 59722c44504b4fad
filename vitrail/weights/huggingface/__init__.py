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
from vitrail.tasks.task import check_classes
from vitrail.weights.description import KEY, check_version, describe
from vitrail.weights.huggingface import pyramids, vit
from vitrail.weights.huggingface.family import Family
from vitrail.weights.huggingface.processor import from_processor, to_processor
from vitrail.weights.layout import Weights, leave_out, refuse
from vitrail.weights.names import State
from vitrail.weights.tensors import OTHER, printable

FAMILIES: dict[str, Family] = {family.model_type: family for family in (*vit.FAMILIES, vit.BEIT, *pyramids.FAMILIES)}
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
        classes, renamed = _classes(described.get("id2label"), config.classes)
    state, beside = leave_out(config, state, inside=family.inside(tensors))
    preprocessing, assumed = from_processor(preprocessor, family.processor, config, path)
    weights = Weights(
        layout="Hugging Face",
        config=family.set_size(config, preprocessing),
        tensors=state,
        preprocessing=preprocessing,
        classes=classes,
        multi_label=described.get("problem_type") == MULTI_LABEL,
        assumed=(*assumed, *renamed),
        unused=(*unused, *beside),
    )
    with _explaining(path):
        weights = family.complete(weights, {**family.defaults, **described}, tensors)
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


def to_huggingface(classifier: Classifier) -> Folder:
    """The inverse of `read_huggingface`; the classes of transformers compute the same logits from it.

    Raises:
        CheckpointError: a part of the model or the preprocessing has no counterpart in transformers.
    """
    family = FAMILIES[_model_type_of(classifier.config)]
    config, changed = family.express(classifier.config)
    fields, differences = family.write_config(config)
    state = {name: tensor.detach().cpu() for name, tensor in classifier.backbone.state_dict().items()}
    state = family.express_state(classifier.config, state)
    tensors = family.to_transformers_names(state, has_body=bool(classifier.classes))
    tensors = {name: tensor.clone(memory_format=torch.contiguous_format) for name, tensor in tensors.items()}
    processor, roundings = to_processor(classifier.preprocessing)
    notes = [*changed, *differences, *roundings]
    labels = {
        "id2label": {str(index): name for index, name in enumerate(classifier.classes)},
        "label2id": {name: index for index, name in enumerate(classifier.classes)},
    }
    described = {
        **fields,
        **(labels if classifier.classes else {}),
        **({"problem_type": MULTI_LABEL} if classifier.multi_label else {}),
        KEY: {**describe(classifier), "digest": digest(tensors)},
    }
    if classifier.temperature != 1:
        notes.append(f"the temperature {classifier.temperature:g} is not applied by transformers")
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
        written, _ = from_processor(to_processor(known.preprocessing)[0], "ViT", known.config, path)
    return known if written == weights.preprocessing else replace(known, preprocessing=weights.preprocessing)


def _apply_description(description: Any, weights: Weights, family: Family, path: Path) -> Weights | None:
    """Returns ``weights`` as described, or None if transformers would read a different model from it."""
    check_version(description, path)
    config = ARCHITECTURES[description["architecture"]].from_dict(description["config"])
    fields, _ = family.write_config(family.express(config)[0])
    classes = weights.classes or check_classes(description["classes"], outputs=config.classes)
    temperature = float(description["temperature"])
    read = family.set_size(family.read_config(fields, weights.tensors), weights.preprocessing)
    if read != weights.config or not 0 < temperature < math.inf:
        return None
    tensors = family.restore_state(config, weights.tensors)
    preprocessing = Preprocessing.from_dict(description["preprocessing"])
    changes = {"config": config, "tensors": tensors, "preprocessing": preprocessing, "temperature": temperature}
    return replace(weights, **changes, classes=classes or None, assumed=())
