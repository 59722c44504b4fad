"""The description of a model type of transformers, and bidirectional tables of names.

The names are those in files, as written by `save_pretrained` and stored on the hub; those in memory differ.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from vitrail.data.preprocessing import Preprocessing
from vitrail.errors import CheckpointError
from vitrail.models import Config
from vitrail.text import printable
from vitrail.weights.blocks import join_blocks, split_biases
from vitrail.weights.layout import Weights
from vitrail.weights.names import QKV, Names, Parts, State, invert, join_parts, nest, pattern_of, rename, split_parts
from vitrail.weights.shapes import count_outputs

# transformers' hidden_act -> vitrail's gelu
GELUS = {
    **dict.fromkeys(("gelu", "gelu_python"), "exact"),
    **dict.fromkeys(("gelu_pytorch_tanh", "gelu_python_tanh", "gelu_new", "gelu_fast", "gelu_accurate"), "tanh"),
    "quick_gelu": "quick",
}
NULLABLE = ("pos_embed_rescale",)  # fields whose null is not the default but None


class Field(NamedTuple):
    """A field of our config, that of config.json, its default in transformers, and the conversions from and to it."""

    ours: str
    theirs: str
    default: Any
    read: Callable[[Any], Any] = lambda value: value
    write: Callable[[Any], Any] = lambda value: list(value) if isinstance(value, tuple) else value


@dataclass(frozen=True, kw_only=True)
class Family:
    """The mapping between one model type of transformers and vitrail.

    Args:
        is_nested: whether the fields of the image tower are those of ``vision_config``, beside a text tower.
        body: prefix of their names in models with a head; the names of the head do not have it.
        names, heads: our names -> theirs, without ``body``.
        also: their names -> ours, for tensors that some of their classes store outside of the body.
        unused, unused_heads: their modules and parameters without a counterpart, inside and outside of the body.
        unused_with_classes: those inside of the body that a classifier does not use.
        parts: projections that are one tensor in vitrail and several in transformers.
        model: the first part of the names of their classes.
        processor: their image processor, see `processor.PROCESSORS`.
        fields: those of config.json that are fields of our config, too.
        others: further fields of config.json that are read, with transformers' defaults.
        read: builds our config from the values of `fields` and the number of outputs, all fields of config.json, and the
            tensors by our names. Raises `CheckpointError`, or the errors of invalid values.
        write: returns further fields of config.json, and notes on differences. Raises `CheckpointError` for configs that
            transformers does not support.
        express, express_state: convert a config and its tensors to an equivalent that transformers supports, with the same
            outputs, and with notes on differences.
        restore_state: the inverse of `express_state`, for the original config.
        complete: converts what depends on the image size or the preprocessing, of the weights as read; called with all fields
            of config.json and the tensors by transformers' names. Raises as ``read``.
        prepare, express_parts: convert tensors by our names from and to the shapes of theirs, whatever the config.
        read_task: adds another task than classification to the weights as read; called with all fields of config.json, those of
            preprocessor_config.json, and the tensors by our names. Raises as ``read``.
    """

    model_type: str
    is_nested: bool = False
    body: str
    names: Names
    heads: Names = field(default_factory=lambda: {"head": "classifier"})
    also: Names = field(default_factory=dict)
    unused: tuple[str, ...] = ()
    unused_heads: tuple[str, ...] = ()
    unused_with_classes: tuple[str, ...] = ()
    parts: Parts = field(default_factory=lambda: QKV)
    model: str
    processor: str
    fields: Sequence[Field]
    others: Mapping[str, Any] = field(default_factory=dict)
    read: Callable[[dict[str, Any], Mapping[str, Any], State], Config]
    write: Callable[[Any], tuple[dict[str, Any], list[str]]]
    express: Callable[[Any], tuple[Config, list[str]]] = lambda config: (config, [])
    express_state: Callable[[Any, State], State] = lambda config, state: state
    restore_state: Callable[[Any, State], State] = lambda config, state: state
    complete: Callable[[Weights, Mapping[str, Any], State], Weights] = lambda weights, fields, tensors: weights
    prepare: Callable[[State], State] = lambda state: state
    express_parts: Callable[[State], State] = lambda state: state
    read_task: Callable[[Weights, Mapping[str, Any], Mapping[str, Any], State], Weights] | None = None

    @property
    def defaults(self) -> dict[str, Any]:
        """The fields of config.json that are read, with transformers' defaults."""
        return {**{each.theirs: each.default for each in self.fields}, **self.others}

    def read_config(self, described: Mapping[str, Any], state: State) -> Config:
        """Returns our config of a model with the tensors ``state``, by our names, and the config.json ``described``."""
        tower = described.get("vision_config") if self.is_nested else described
        if not isinstance(tower, Mapping):
            raise CheckpointError(f"its vision_config is {printable(repr(tower))}", "an object is needed")
        stated = {name: value for name, value in tower.items() if value is not None or name in NULLABLE}
        fields = {**self.defaults, **stated}
        values = {each.ours: each.read(fields[each.theirs]) for each in self.fields}
        return self.read({"classes": count_outputs(state), **values}, fields, state)

    def write_config(self, config: Config) -> tuple[dict[str, Any], list[str]]:
        """The inverse of `read_config`: returns config.json, and notes on differences. Raises `CheckpointError`."""
        others, notes = self.write(config)
        fields = {each.theirs: each.write(getattr(config, each.ours)) for each in self.fields}
        name = self.model + ("ForImageClassification" if config.classes else "Model")
        if self.is_nested:
            fields = {"vision_config": fields}
        return {"architectures": [name], "model_type": self.model_type, **fields, **others}, notes

    @property
    def first_layers(self) -> tuple[str, str]:
        """Names of the first layer's weight, with and without ``body``."""
        layer = next(self.names[ours] for ours in ("patch_embed.proj", "stem.conv") if ours in self.names)
        return f"{self.body}.{layer}.weight", f"{layer}.weight"

    def inside(self, tensors: State) -> tuple[str, ...]:
        """Returns what the names of tensors of the body and of the heads begin with."""
        heads = [f"{theirs}.{part}" for theirs in self.heads.values() for part in ("weight", "bias")]
        if any(name.startswith(f"{self.body}.") for name in tensors):
            return (f"{self.body}.", *heads)
        return (*{theirs.partition(".")[0] for theirs in self.names.values()}, *heads)

    def to_own_names(self, tensors: State) -> tuple[State, tuple[str, ...]]:
        """Renames their tensors to our names, and lists those without a counterpart. Unknown names are kept."""
        has_body = any(name.startswith(f"{self.body}.") for name in tensors)
        inside = f"{self.body}." if has_body else ""
        within = (*self.unused, *(self.unused_with_classes if "classifier.weight" in tensors else ()))
        idle = [pattern_of(name) for name in (*(inside + name for name in within), *self.unused_heads)]
        unused = {name for name in tensors if any(pattern.fullmatch(name) for pattern in idle)}
        used = {name: tensor for name, tensor in tensors.items() if name not in unused}
        renamed = rename(used, {**invert(self.table(has_body)), **self.also})
        return join_blocks(self.prepare(join_parts(renamed, self.parts))), tuple(sorted(unused))

    def to_transformers_names(self, state: State, *, has_body: bool) -> State:
        """The inverse of `to_own_names`."""
        return rename(split_parts(self.express_parts(split_biases(state)), self.parts), self.table(has_body))

    def set_size(self, config: Config, preprocessing: Preprocessing) -> Config:
        """Returns the config at the size of the preprocessing, if config.json does not state one."""
        return config if "image_size" in self.defaults else replace(config, image_size=preprocessing.size)

    def table(self, has_body: bool) -> dict[str, str]:
        inside = f"{self.body}." if has_body else ""
        return {**{ours: inside + theirs for ours, theirs in self.names.items()}, **self.heads}


def hidden_width(width: int, ratio: float, *, gated: bool) -> int:
    """Returns the width of an MLP; of a SwiGLU, it is two thirds, in steps of 8."""
    hidden = int(width * ratio)
    return (int(hidden * 2 / 3) + 7) // 8 * 8 if gated else hidden


def ratio_of(width: int, hidden: int, *, gated: bool) -> float:
    """The inverse of `hidden_width`, up to its steps."""
    ratio = hidden * (1.5 if gated else 1) / width
    return ratio if hidden_width(width, ratio, gated=gated) == hidden else math.nextafter(ratio, math.inf)


def gelu_of(act: Any) -> str:
    """Converts ``hidden_act`` to our type of GELU. Raises `CheckpointError` for other activations."""
    if not isinstance(act, str) or act not in GELUS:
        raise CheckpointError(f"it has hidden_act {printable(repr(act))}", f"supported: {', '.join(GELUS)}")
    return GELUS[act]


def side_or_pair(size: tuple[int, int]) -> int | list[int]:
    """Returns a size as in config.json: one number for a square."""
    return size[0] if size[0] == size[1] else list(size)


# fields that most of their configs have; dropout is off by default
IMAGE_SIZE = Field("image_size", "image_size", 224, write=side_or_pair)
PATCH_SIZE = Field("patch_size", "patch_size", 16, write=side_or_pair)
CHANNELS = Field("in_channels", "num_channels", 3)
GELU = Field("gelu", "hidden_act", "gelu", gelu_of, {ours: act for act, ours in reversed(GELUS.items())}.__getitem__)
DROPOUTS = (
    Field("dropout", "hidden_dropout_prob", 0.0),
    Field("attention_dropout", "attention_probs_dropout_prob", 0.0),
)
COMMON = (CHANNELS, GELU, *DROPOUTS, Field("qkv_bias", "qkv_bias", True))


def name_block(attention: str) -> dict[str, str]:
    """Returns the table of a block as in ViT, Swin and BEiT, whose q, k and v are in the module ``attention``."""
    return {
        "norm1": "layernorm_before",
        **nest("attn.", f"attention.{attention}.", {"q": "query", "k": "key", "v": "value"}),
        "attn.proj": "attention.output.dense",
        "norm2": "layernorm_after",
        "mlp.fc1": "intermediate.dense",
        "mlp.fc2": "output.dense",
    }


def note_sizes(config: Any, resizes: Mapping[str, tuple[str, str]]) -> list[str]:
    """Returns notes on what differs at other image sizes: the resize of tables, by vitrail and by transformers, and padding."""
    notes = [
        f"at other image sizes {what} are resized by {theirs!r} in transformers, by {ours!r} in vitrail"
        for what, (ours, theirs) in resizes.items()
        if ours != theirs
    ]
    if config.pad:
        notes.append("partial patches at the border are cropped by transformers, and padded with zeros by vitrail")
    return notes
