"""Folders of transformers: config.json, tensors by its names, preprocessor_config.json; read, and written.

What tensors cannot say (heads, the kind of GELU, eps) stands in config.json, or is as transformers has it by default. Each
architecture has a table of names and two functions, in a file of its own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from vitrail.errors import CheckpointError
from vitrail.models import Config, ViTConfig
from vitrail.tasks.classification import Classifier
from vitrail.weights.description import KEY
from vitrail.weights.huggingface import beit, bit, own, pvt, swin, vit
from vitrail.weights.huggingface.family import Family
from vitrail.weights.huggingface.processor import from_processor, to_processor
from vitrail.weights.layout import Weights
from vitrail.weights.tensors import AGAIN, printable

FAMILIES: dict[str, Family] = {
    family.model_type: family for family in (*vit.FAMILIES, swin.SWIN, beit.BEIT, pvt.PVT, pvt.PVT_V2, bit.BIT)
}
PROCESSOR = "preprocessor_config.json"
MULTI_LABEL = "multi_label_classification"


class Folder(NamedTuple):
    """What a folder of transformers holds: tensors by its names, config.json, preprocessor_config.json; and notes on what
    these cannot say, for a person.
    """

    tensors: dict[str, Tensor]
    config: dict[str, Any]
    preprocessor: dict[str, Any]
    notes: list[str]


def read_huggingface(
    tensors: dict[str, Tensor], described: Mapping[str, Any], preprocessor: Mapping[str, Any], path: Path
) -> Weights:
    """What a folder of transformers holds.

    Args:
        described: its config.json.
        preprocessor: its preprocessor_config.json, ``{}`` where there is none.
        path: for messages.

    Raises:
        CheckpointError: another architecture, or a value that is not known here or cannot be meant.
    """
    family = _family(described, path)
    state, unused = family.to_own_names(tensors)
    fields = {**family.defaults, **{name: value for name, value in described.items() if value is not None}}
    try:
        config = family.read(fields, state)
        classes, renamed = _classes(described.get("id2label"), config.classes)
    except CheckpointError as error:
        raise CheckpointError(f"{path} cannot be read: {error.what}", error.remedy) from error
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        what = f"config.json of {path} is of no model that can be built: {printable(error, 300)}"
        raise CheckpointError(what, AGAIN) from error
    preprocessing, assumed = from_processor(preprocessor, family.processor, config, path)
    weights = Weights(
        layout="Hugging Face",
        config=family.set_size(config, preprocessing),
        tensors=state,
        preprocessing=preprocessing,
        classes=classes,
        multi_label=described.get("problem_type") == MULTI_LABEL,
        assumed=(*assumed, *renamed),
        unused=unused,
    )
    if KEY not in described:
        return weights
    return own.merge_description(described[KEY], tensors, weights, family, processed=bool(preprocessor), path=path)


def to_huggingface(classifier: Classifier) -> Folder:
    """The inverse of `read_huggingface`; transformers' own classes give the same logits from it.

    Raises:
        CheckpointError: the model has a part that transformers has no counterpart of, or a preprocessing.
    """
    family = FAMILIES[_model_type_of(classifier.config)]
    config, notes = family.express(classifier.config)
    name, fields, more = family.write(config)
    notes += more
    state = {name: tensor.detach().cpu() for name, tensor in classifier.backbone.state_dict().items()}
    state = family.express_state(classifier.config, state)
    tensors = family.to_transformers_names(state, has_body=bool(classifier.classes))
    tensors = {name: tensor.clone(memory_format=torch.contiguous_format) for name, tensor in tensors.items()}
    processor, more = to_processor(classifier.preprocessing)
    notes += more
    labels = {
        "id2label": {str(place): name for place, name in enumerate(classifier.classes)},
        "label2id": {name: place for place, name in enumerate(classifier.classes)},
    }
    described = {
        "architectures": [name],
        "model_type": family.model_type,
        **fields,
        **(labels if classifier.classes else {}),
        **({"problem_type": MULTI_LABEL} if classifier.multi_label else {}),
        KEY: own.describe_with_digest(classifier, tensors),
    }
    if classifier.temperature != 1:
        notes.append(f"the temperature {classifier.temperature:g} is not applied there")
    return Folder(tensors, described, processor, notes)


def _family(described: Mapping[str, Any], path: Path) -> Family:
    model_type = described.get("model_type")
    if not isinstance(model_type, str) or model_type not in FAMILIES:
        name = printable(repr(model_type or described.get("architectures")))
        what = f"{path} is a folder of Hugging Face transformers, of the model type {name}"
        raise CheckpointError(what, f"{', '.join(FAMILIES)} are read")
    return FAMILIES[model_type]


def _model_type_of(config: Config) -> str:
    if isinstance(config, ViTConfig):
        return vit.model_type_of(config)
    model_type = config.architecture.replace("-", "_")
    if model_type not in FAMILIES:
        raise CheckpointError(f"transformers has no counterpart of {config.about}", "keep it in vitrail's format")
    return model_type


def _classes(labels: Any, outputs: int) -> tuple[tuple[str, ...] | None, list[str]]:
    """The names of ``id2label``, and a line on those that had to change; None where it is no more than numbers.

    ImageNet has two cranes: a name that stands again gets its number.
    """
    if not isinstance(labels, Mapping) or labels.keys() != {str(place) for place in range(outputs)}:
        return None, []
    names = [str(labels[str(place)]) for place in range(outputs)]
    if not outputs or names == [f"LABEL_{place}" for place in range(outputs)]:
        return None, []
    twice = {name for name, count in Counter(names).items() if count > 1}
    numbered = [f"{name} ({place})" if name in twice else name for place, name in enumerate(names)]
    return tuple(numbered), [f"numbers after the {len(twice)} class names that appear twice"] if twice else []
