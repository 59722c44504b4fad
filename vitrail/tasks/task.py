"""The seam of tasks: what a model answers, what it is compared with, and what an answer looks like to a person.

Everything outside of this folder that trains, evaluates, predicts, exports or serves a model uses what is here, and assumes
nothing of the shape of its outputs. `vitrail.tasks.TASKS` names the tasks that there are.

B images, C channels, H and W their size, h and w as the network takes them, F width of the features.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, replace
from importlib import import_module
from os import PathLike
from pathlib import Path
from typing import Any, ClassVar, Literal, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from vitrail.data.augment.placement import Frames
from vitrail.data.preprocessing import Preprocessing, Resize
from vitrail.data.sources.source import Source
from vitrail.data.windows import Windows
from vitrail.errors import ConfigError, find_fault, nearest
from vitrail.markup import join, tag
from vitrail.models import MODELS, Backbone, Config, create_backbone, device_of
from vitrail.rows import show_facts
from vitrail.tasks.answer import Answer, AnswerFiles, Answers
from vitrail.tasks.metric import Metric
from vitrail.tasks.targets import TargetKind
from vitrail.tasks.user_images import Picture, Transform, list_pictures
from vitrail.text import plural

BATCH = 32  # pictures that `Task.predict` shows the network at one time
WINDOWS = 8  # of a large picture at one time; the outputs of a segmenter have as many numbers as all its features
# what a task answers by asking its backbone; see `vitrail.models`
BACKBONE_VERBS = {
    *("config", "about", "width", "patch_width", "prefix", "first_layer", "layers", "no_decay"),
    *("patchify", "place", "encode", "pool", "head", "heads", "features", "forward_features", "feature_maps"),
    *("dense_maps", "features_and_map", "last_map", "attention_grids", "forward_recording", "forward_with_attention"),
    "pooling_shares",
    "encode_queries",
    "norm_tokens",
}
Loss = Literal["softmax", "sigmoid", "mse", "smooth-l1"]
Views = Literal["flip", "5crop"]  # of a picture, see `vitrail.inference.views`
# key of `Task.provenance`: the weights carry no names of classes, and the outputs are named by their numbers
NUMBERED = "numbered_classes"
FITTED = {"classes", "image_size", "in_channels"}  # fields of a config that follow the data
LISTED = 5  # names of classes


class Task(nn.Module, ABC):
    """A backbone with what turns its output into answers, the names of the answers, and how its inputs are made.

    Calling it gives the outputs that `loss`, `decode` and `metric` take. The backbone's verbs (`BACKBONE_VERBS`) pass through.
    A task whose outputs do not come from the backbone's head keeps what makes them in ``own``: it is trained, saved and moved
    with the model.

    Args:
        backbone: any architecture of `vitrail.models`.
        classes: one name for each output.
        preprocessing: how a picture becomes its input.
        provenance: plain facts on where the weights come from; stored with the model.

    Raises:
        ConfigError: names that repeat, or whose number is not that of the outputs; preprocessing for other channels.
    """

    name: ClassVar[str]  # in `TASKS`, in config.json and as a setting
    reply: ClassVar[
        Mapping[str, Any]
    ] = {}  # the types of what `Answer.to_json` returns, for the description of the server
    has_own_head: ClassVar[bool] = False  # whether ``own`` makes the outputs, and the backbone has no head
    targets: TargetKind = TargetKind()  # what it learns from
    # that ``objective.loss`` can name: by default for one label an image, for several
    losses: ClassVar[tuple[Loss, ...]] = ()
    learns_from_teacher: bool = False  # whether a teacher's logits can stand beside the labels
    # further arguments: those that the setting ``model.head`` may give, those that a model may change and keep its head, and the
    # one that a training sets to the figure of that name on the validation split
    options: ClassVar[tuple[str, ...]] = ()
    free_options: ClassVar[tuple[str, ...]] = ()
    tuned: ClassVar[str | None] = None
    keeps_parts: ClassVar[bool] = False  # whether another head begins with the tensors of ``own`` that have its shapes
    resize: ClassVar[Resize | None] = None  # of inputs, where it is not that of the weights or of the paper
    pixels: ClassVar[Mapping[str, int]] = {}  # most pixels of an input whose size follows the images, by device
    views: ClassVar[tuple[Views, ...]] = ()  # for which the mean of the outputs is an answer for the picture
    # answers: whether they are a class with a probability, which the method ``probabilities`` gives for each of ``classes``;
    # whether an image has several; what logits are divided by; the share of known images called unlike the training images, None
    # where that is not fitted; whether they are a `PlacedAnswer`, to be drawn over the picture;
    # further arguments of `decode` that users may set, of "threshold" and "side"; their files beside tables, the usual first
    answers_classes: bool = False
    multi_label: bool = False
    temperature: float | None = None
    false_alarms: float | None = None
    draws_answers: ClassVar[bool] = False
    decode_options: ClassVar[tuple[str, ...]] = ()
    formats: ClassVar[Mapping[str, type[AnswerFiles]]] = {}
    graph_outputs: tuple[str, ...] = ("outputs",)  # names of what `graph` gives, what calling the task gives first

    def __init__(
        self,
        backbone: Backbone,
        classes: Sequence[str],
        preprocessing: Preprocessing,
        *,
        provenance: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__()
        self.classes = check_classes(classes)
        if (outputs := 0 if self.has_own_head else len(self.classes)) != backbone.config.classes:
            what = f"{len(self.classes)} class names for {backbone.config.classes} outputs"
            remedy = "give one name for each output, in order"
            raise ConfigError(what, remedy if outputs else f"the task {self.name} takes a backbone without a head")
        if preprocessing.channels != backbone.config.in_channels:
            raise ConfigError(
                f"the preprocessing has {preprocessing.channels} channels, the model {backbone.config.in_channels}",
                "give one mean and one std for each channel of the model",
            )
        self.backbone = backbone
        self.preprocessing = preprocessing
        self.provenance = dict(provenance or {})
        self.own = nn.ModuleDict()

    # Arguments.

    @classmethod
    def read_source(cls, train: Source) -> dict[str, Any]:
        """Returns ``classes`` and further arguments of the task, as training data say them. Raises `DataError`."""
        return {"classes": train.classes}

    def describe(self) -> dict[str, Any]:
        """Returns further arguments as plain values, by default ``options``; they stand in config.json."""
        values = {name: getattr(self, name) for name in self.options}
        return {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}

    @classmethod
    def read_description(cls, description: Mapping[str, Any]) -> dict[str, Any]:
        """Inverts `describe`. Raises KeyError, TypeError or ValueError for what cannot be meant."""
        return {}

    # Training.

    def loss_options(self, loss: str | None, *, binarise: bool) -> dict[str, Any]:
        """Returns arguments of `loss` from ``objective.loss`` and ``objective.binarise``. Raises `ConfigError`."""
        if loss is not None or binarise:
            what = f"the task {self.name} has one loss, and objective.loss or objective.binarise asks for another"
            raise ConfigError(what, "leave both out")
        return {}

    @abstractmethod
    def loss(self, outputs: Tensor, targets: Any, **options: Any) -> Tensor:
        """Returns the mean loss over images, a scalar in fp32."""

    def measure(self, outputs: Tensor, targets: Any) -> dict[str, Tensor]:
        """Returns scalars worth logging beside the loss, of a batch in training."""
        return {}

    # Evaluating and answering.

    @abstractmethod
    def metric(self, source: Source | None = None) -> Metric:
        """Returns an empty metric for the targets of ``source``, by default for such as the task was trained with."""

    @abstractmethod
    def decode(self, outputs: Tensor, frames: Frames | None = None, *, top: int = 5) -> Sequence[Answer]:
        """Returns the answers, one an image, from what calling the task gave.

        ``frames`` say what the images show of their pictures, for answers that lie in these; ``top`` is the most labels of one.
        """

    def reply_arrays(self, outputs: Tensor, frames: Frames | None = None) -> dict[str, NDArray | list[str]]:
        """Returns named arrays or texts, the images first, for clients that want numbers (the Open Inference Protocol)."""
        return {"outputs": outputs.numpy()}

    # Leaving PyTorch.

    def graph(self, images: Tensor) -> dict[str, Tensor]:
        """Returns what an exported graph gives for normalised images (B, C, H, W), by name."""
        return self.name_outputs(self(images))

    def name_outputs(self, outputs: Tensor) -> dict[str, Tensor]:
        """Returns the outputs of the call by the names that they have in an exported graph; the inverse of `read_graph`."""
        return {self.graph_outputs[0]: outputs}

    def read_graph(self, outputs: Mapping[str, Tensor]) -> Tensor:
        """Returns what `decode` and `metric` take, from the outputs of an exported graph: by default the first."""
        return outputs[self.graph_outputs[0]]

    def agreement(self, expected: Mapping[str, Tensor], given: Mapping[str, Tensor]) -> float:
        """Returns the share of images to which two graphs give the same answer, in [0, 1]."""
        name = self.graph_outputs[0]
        close = (expected[name] - given[name]).abs() <= 1e-3 * expected[name].abs().amax().clamp(min=1e-30)
        return float(close.reshape(len(close), -1).all(1).double().mean())

    def difference(self, expected: Mapping[str, Tensor], given: Mapping[str, Tensor]) -> float:
        """Returns how far two graphs' outputs are apart, where 0 is equal; see `largest_difference`."""
        return largest_difference(expected, given)

    # What every task does alike.

    def forward(self, images: Tensor) -> Tensor:
        """Returns the outputs for normalised images (B, C, H, W): by default those of the backbone's head, (B, K) logits."""
        return self.backbone(images)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.backbone, name) if name in BACKBONE_VERBS else super().__getattr__(name)

    @property
    def transform(self) -> Transform:
        """A function from one picture to the network's input (C, H, W) on the CPU, for a ``Dataset`` of one's own."""
        return Transform(self.preprocessing)

    def preprocess(self, pictures: Picture | Iterable[Picture]) -> Tensor:
        """Returns pictures as the network takes them, on its device: (B, C, H, W) float32.

        Args:
            pictures: one or several of: paths of image files; Pillow images of any mode and size; the bytes of image files;
                arrays (H, W, C) or (H, W); tensors (C, H, W); uint8, or floats in [0, 1]. Four dimensions are several
                pictures, and the path of a folder stands for all images in it.

        Raises:
            DataError: names the picture that cannot be used, and why.
        """
        return read_pictures(self, list_pictures(pictures))[0]

    def save(self, path: str | Path) -> Path:
        """Writes the model to a folder or a ``.safetensors`` file that `vitrail.load` reads; see `vitrail.save`."""
        return import_module("vitrail.weights.native").save(self, path)  # by its name, as it stands above

    def predict(
        self, pictures: Picture | Iterable[Picture], top: int = 5, *, threshold: float | None = None, zoom: float = 1
    ) -> Answers[Any]:
        """Returns the `Answer` for each picture, in a list with ``to_pandas()``; its ``key`` is the path, if one was given.

        Args:
            pictures: what `preprocess` takes.
            top: how many labels an answer lists, at most.
            threshold: the least score of an object; by default that of the detector.
            zoom: shows pictures this many times as large as they fit into the input, in overlapping windows, to a detector
                or a segmenter; 1 shows whole pictures.
        """
        options = choose_decode_options(self, top=top, threshold=threshold)
        pictures, windows = list_pictures(pictures), choose_windows(self, zoom)
        together = BATCH if windows is None else 1
        was_training = self.training
        self.eval()
        try:
            with torch.inference_mode():
                answers: list[Answer] = []
                for first in range(0, len(pictures), together):
                    outputs, frames = _compute(self, pictures[first : first + together], windows)
                    answers += self.decode(outputs, frames, **options)
            paths = (str(picture) if isinstance(picture, str | PathLike) else "" for picture in pictures)
            return Answers((replace(answer, key=path) for answer, path in zip(answers, paths)), pictures)
        finally:
            self.train(was_training)

    def __repr__(self) -> str:
        """A few lines; ``model.backbone`` prints the modules."""
        lines = (f"  {name:<14} {value}" for name, value in describe_model(self).items())
        return "\n".join([type(self).__name__, *lines])

    def _repr_html_(self) -> str:
        return join(tag("p", tag("strong", type(self).__name__)), show_facts(describe_model(self).items()))


def largest_difference(expected: Mapping[str, Tensor], given: Mapping[str, Tensor]) -> float:
    """The largest absolute difference of an output, as a share of the largest absolute value of that output."""
    pairs = ((output, given[name]) for name, output in expected.items())
    return max(float((one - other).abs().max() / one.abs().max().clamp(min=1e-30)) for one, other in pairs)


def check_head(task: Task) -> None:
    """Raises `ConfigError` where the task has no head to answer with."""
    if not task.classes:
        remedy = "train one: `vitrail train DATA --init MODEL`; `vitrail embed` gives its features"
        raise ConfigError("the model has no head to predict with", remedy)


def choose_decode_options(
    task: Task, *, top: int = 5, threshold: float | None = None, side: int | None = None
) -> dict[str, Any]:
    """Returns further arguments of `Task.decode` from what users ask for. Raises `ConfigError` for what answers do not have."""
    check_head(task)
    if top < 1:
        raise ConfigError(f"top is {top}", "ask for at least one label")
    given = {"threshold": threshold, "side": side}
    for name, lacking in (("threshold", "objects with a score"), ("side", "map of classes")):
        if given[name] is not None and name not in task.decode_options:
            what = f"{name} is {given[name]}, and answers of the task {task.name} have no {lacking}"
            raise ConfigError(what, f"leave {name} out")
    if threshold is not None and not 0 <= threshold <= 1:
        raise ConfigError(f"the threshold is {threshold}", "give the least score of an object, from 0 to 1")
    if side is not None and side < 1:
        raise ConfigError(f"side is {side}", "give the pixels of the longer side of a map, at most")
    return {"top": top, **{name: given[name] for name in task.decode_options}}


def choose_windows(task: Task, zoom: float) -> Windows | None:
    """Returns how a picture is shown ``zoom`` times as large; None for 1, where it is shown whole. Raises `ConfigError`."""
    if zoom == 1:
        return None
    if not task.draws_answers:
        what = f"zoom is {zoom:g}, and a model of the task {task.name} answers for whole pictures"
        raise ConfigError(what, "leave zoom out")
    return Windows(task.preprocessing, zoom)


def read_pictures(task: Task, pictures: Sequence[Picture]) -> tuple[Tensor, Frames]:
    """Returns inputs (B, C, H, W) on the task's device, and what they show of the pictures."""
    paths = (f" ({picture})" if isinstance(picture, str | PathLike) else "" for picture in pictures)
    named = enumerate(zip(pictures, paths))
    read = [task.transform.read(picture, f"picture {place}{path}") for place, (picture, path) in named]
    empty = torch.empty(0, task.preprocessing.channels, *task.preprocessing.size)
    inputs = torch.cat([empty, *(image[None] for image, _ in read)])
    return inputs.to(device_of(task)), Frames.seen(task.preprocessing, [size for _, size in read])


def _compute(task: Task, pictures: Sequence[Picture], windows: Windows | None) -> tuple[Tensor, Frames]:
    """Returns the outputs for pictures, in windows for a single one, and what they show of these."""
    if windows is None:
        images, frames = read_pictures(task, pictures)
        return task(images), frames
    images, size = Transform(windows).read(pictures[0], "the picture")  # (V, C, h, w)
    views = Frames.of_windows(windows, size)
    parts = images.to(device_of(task)).split(WINDOWS)
    return task.join_windows(map(task, parts), views), views.take(np.array([0]))  # type: ignore[not-callable]


Kind = TypeVar("Kind", bound=Task)


def create_task(
    kind: type[Kind],
    name: str | Config,
    arguments: Mapping[str, Any],
    *,
    preprocessing: Preprocessing | None = None,
    **changes: Any,
) -> Kind:
    """Creates a freshly initialised model of a task with these ``arguments``; the rest is as `create_classifier` has it."""
    backbone = create_backbone(name, classes=count_head_outputs(kind, arguments["classes"]), **changes)
    if preprocessing is None:
        preprocessing = Preprocessing.paper(backbone.config.image_size, channels=backbone.config.in_channels)
    return kind(backbone, preprocessing=preprocessing, **arguments)


def count_head_outputs(kind: type[Task], classes: Sequence[str]) -> int:
    """Returns how many outputs the backbone's own head has; 0 where the task has a head of its own."""
    return 0 if kind.has_own_head else len(classes)


def read_arguments(kind: type[Task], train: Source, options: Mapping[str, Any]) -> dict[str, Any]:
    """Returns what `Task.read_source` gives, with ``options`` of the user.

    Raises `ConfigError` for unknown options, and `DataError`.
    """
    for name in options:
        if name not in kind.options:
            remedy = nearest(name, kind.options) if kind.options else f"the head of the task {kind.name} has no options"
            raise ConfigError(f"model.head sets {name!r}", remedy)
    kind.targets.check(train, kind.name)
    return {**kind.read_source(train), **options}


def check_classes(classes: Sequence[str], *, outputs: int | None = None) -> tuple[str, ...]:
    """The names as a tuple. Raises `ConfigError` for a text, names that repeat, or another number than there are outputs."""
    if isinstance(classes, str):
        what = f"classes is the text {classes!r}"
        raise ConfigError(what, "give a list of names; for a file of names use classes_file")
    names = tuple(map(str, classes))
    for name in names:
        if fault := find_fault(name):
            raise ConfigError(f"the class name {name!r} {fault}", "give another name")
    if outputs is not None and len(names) != outputs:
        raise ConfigError(f"{len(names)} class names for {outputs} outputs", "give one name for each output, in order")
    if repeated := sorted(name for name, count in Counter(names).items() if count > 1):
        raise ConfigError(f"class names repeat: {', '.join(repeated[:5])}", "give each output a name of its own")
    return names


def has_ambiguous_order(classes: Sequence[str], provenance: Mapping[str, Any]) -> bool:
    """Whether the weights carry no names, and numbers as names have another order as text: 0, 1, 10, 11, ..., 2, as with
    torchvision's ImageFolder.
    """
    return bool(provenance.get(NUMBERED)) and sorted(classes) != list(classes)


def list_names(classes: int | Sequence[str]) -> Sequence[str]:
    """The names of classes; of a number of them the numbers from 0."""
    return tuple(map(str, range(classes))) if isinstance(classes, int) else classes


def describe_model(model: Any) -> dict[str, str]:
    """What one wants to know of a `vitrail.tasks.Task`: its name, sizes, classes, parameters, preprocessing, origin."""
    config, parameters = model.config, list(model.parameters())
    height, width = model.preprocessing.size
    count = f"{sum(parameter.numel() for parameter in parameters):,}" if parameters else "in the exported graph"
    kinds = sorted({str(parameter.dtype).removeprefix("torch.") for parameter in parameters})
    more = f", ... and {len(model.classes) - LISTED:,} more" if len(model.classes) > LISTED else ""
    classes = f"{len(model.classes):,}: {', '.join(model.classes[:LISTED])}{more}"
    facts = {
        "model": find_name(config) or f"{config.about} with {config.blocks} blocks",
        "image size": f"{height} x {width} pixels, {plural(config.in_channels, 'channel')}",
        "classes": classes if model.classes else "none, it gives features",
        "parameters": ", ".join([count, *kinds, f"on {device_of(model)}"]),
        "preprocessing": _describe_preprocessing(model.preprocessing),
    }
    # the file of the weights, or the training; neither for weights without a history
    names = ("weights", "layout") if "weights" in model.provenance else ("init", "data", "recipe", "date")
    origin = ", ".join(f"{name} {model.provenance[name]}" for name in names if model.provenance.get(name))
    return {**facts, **({"from": origin} if origin else {})}


def find_name(config: Config) -> str | None:
    """The name in `MODELS` of a config for any image size, channels and classes; None if it has none."""
    compared = [field.name for field in fields(config) if field.name not in FITTED]
    for name, known in MODELS.items():
        if type(known) is type(config) and all(getattr(known, each) == getattr(config, each) for each in compared):
            return name
    return None


def _describe_preprocessing(preprocessing: Preprocessing) -> str:
    first = "" if preprocessing.resize_to is None else f" to {preprocessing.resize_to}, crop"
    how = "crop" if preprocessing.resize == "none" else f"{preprocessing.resize}{first}"
    resize = f"{how} {'x'.join(map(str, preprocessing.size))}"
    mean, std = (  # one number if all of them are equal
        ", ".join(f"{number:.4g}" for number in (numbers if len(set(numbers)) > 1 else numbers[:1]))
        for numbers in (preprocessing.mean, preprocessing.std)
    )
    return f"{resize}, {preprocessing.interpolation}, mean {mean}, std {std}"
