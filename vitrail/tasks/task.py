"""The seam of tasks: what a model answers, what it is compared with, and what an answer looks like to a person.

Everything outside of this folder that trains, judges, predicts, exports or serves a model asks these verbs and assumes
nothing of the shape of its outputs. `vitrail.tasks.TASKS` names the tasks that there are.

B images, C channels, H and W their size, h and w as the network takes them, F width of the features.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from os import PathLike
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from vitrail.data.augment.placement import Frames, Placement
from vitrail.data.augment.policy import Augment
from vitrail.data.loader import collate_labels
from vitrail.data.preprocessing import Preprocessing, Resize
from vitrail.data.sources.source import Source
from vitrail.data.windows import Windows
from vitrail.errors import ConfigError, nearest
from vitrail.markup import join, tag
from vitrail.models import Backbone, device_of
from vitrail.rows import show_facts
from vitrail.tasks.answer import Answer, Answers
from vitrail.tasks.answer_files import AnswerFiles
from vitrail.tasks.arrays import largest_difference
from vitrail.tasks.class_names import check_classes
from vitrail.tasks.metric import Metric, Targets
from vitrail.tasks.pictures import Picture, Transform, list_pictures, to_pixels
from vitrail.tasks.summary import describe_model

BATCH = 32  # pictures that `Task.predict` shows the network at one time
WINDOWS = 8  # of a large picture at one time; the outputs of a segmenter have as many numbers as all its features
# what a task answers by asking its backbone; see `vitrail.models`
BACKBONE_VERBS = {
    *("config", "about", "width", "patch_width", "prefix", "first_layer", "layers", "no_decay"),
    *("patchify", "place", "encode", "pool", "head", "heads", "features", "forward_features", "feature_maps"),
    *("dense_maps", "attention_grids", "forward_recording", "forward_with_attention", "pooling_shares"),
}
Loss = Literal["softmax", "sigmoid"]


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
    learns_from_teacher: bool = False  # whether a teacher's logits can stand beside the labels
    multi_label: bool = False  # whether an image has several classes, each a yes or no of its own
    draws_answers: ClassVar[bool] = False  # whether an answer is a `PlacedAnswer`, which can be drawn over its picture
    formats: ClassVar[Mapping[str, type[AnswerFiles]]] = {}  # of answers beside tables, by name; the usual ones first
    temperature: float | None = None  # what logits are divided by; None where answers are no probabilities
    options: ClassVar[tuple[str, ...]] = ()  # further arguments that the setting ``model.head`` may give
    tuned: ClassVar[str | None] = (
        None  # an option that a training sets to the figure of that name on the validation split
    )
    resize: ClassVar[Resize | None] = None  # of inputs, where it is not that of the weights or of the paper
    pixels: ClassVar[Mapping[str, int]] = {}  # most pixels of an input whose size follows the images, by device

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
        if (outputs := self.head_outputs(self.classes)) != backbone.config.classes:
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

    # What a task is made of.

    @classmethod
    def head_outputs(cls, classes: Sequence[str]) -> int:
        """How many outputs the backbone's own head has; 0 where the task has a head of its own."""
        return len(classes)

    @classmethod
    def check_source(cls, source: Source) -> None:
        """Raises `DataError` for data whose targets are not those of the task."""

    @classmethod
    def read_source(cls, train: Source) -> dict[str, Any]:
        """``classes`` and further arguments of the task, as training data say them. Raises `DataError`."""
        return {"classes": train.classes}

    @classmethod
    def choose_arguments(cls, train: Source, options: Mapping[str, Any]) -> dict[str, Any]:
        """What `read_source` gives, with ``options`` of the user. Raises `ConfigError` for unknown ones, and `DataError`."""
        for name in options:
            if name not in cls.options:
                remedy = (
                    nearest(name, cls.options) if cls.options else f"the head of the task {cls.name} has no options"
                )
                raise ConfigError(f"model.head sets {name!r}", remedy)
        return {**cls.read_source(train), **options}

    def describe(self) -> dict[str, Any]:
        """Further arguments as plain values; they stand in config.json."""
        return {}

    @classmethod
    def read_description(cls, description: Mapping[str, Any]) -> dict[str, Any]:
        """The inverse of `describe`. Raises KeyError, TypeError or ValueError for what cannot be meant."""
        return {}

    @classmethod
    def check_policy(cls, policy: Augment) -> None:
        """Raises `ConfigError` for augmentation that the targets cannot follow."""
        if policy.mixes or policy.smoothing:
            what = f"mixing images and smoothing labels have no meaning for the task {cls.name}"
            raise ConfigError(what, "set augment.mixup, augment.cutmix and augment.smoothing to 0")

    @property
    def answers_classes(self) -> bool:
        """Whether an answer is a class with a probability, which `probabilities` gives for each of ``classes``."""
        return False

    def probabilities(self, outputs: Tensor) -> Tensor:
        """(B, K) in fp32 of a task that `answers_classes`. Raises `ConfigError` for others."""
        what = f"a model of the task {self.name} gives no probabilities of classes"
        raise ConfigError(what, "take a classifier")

    def keeps_head(self, arguments: Mapping[str, Any]) -> bool:
        """Whether a model with these ``classes`` and further arguments has the same outputs as this one."""
        own = {"classes": self.classes, **self.describe()}
        return all(own.get(name) == value for name, value in arguments.items())

    @classmethod
    def default_loss(cls, train: Source) -> Loss | None:
        """The loss where ``objective.loss`` names none, by its name; None for a task that has one."""
        return None

    # Training: targets, from the source to the loss.

    def collate(self, rows: Any) -> Targets:
        """Rows of a source's targets as those of a batch: a tensor with the images first, or a tuple of such."""
        return collate_labels(rows)

    def move(self, targets: Targets, placement: Placement) -> Targets:
        """The targets of images that were cropped, flipped and moved as ``placement`` says."""
        return targets

    def mix(
        self, images: Tensor, targets: Targets, ids: NDArray[np.int64], policy: Augment, *, seed: int
    ) -> tuple[Tensor, Targets]:
        """Images (B, C, h, w) mixed with one another where the policy asks for it, and their targets softened with them."""
        return images, targets

    def loss_options(self, loss: str | None, *, binarise: bool) -> dict[str, Any]:
        """Arguments of `loss` from ``objective.loss`` and ``objective.binarise``. Raises `ConfigError`."""
        if loss is not None or binarise:
            what = f"the task {self.name} has one loss, and objective.loss or objective.binarise asks for another"
            raise ConfigError(what, "leave both out")
        return {}

    @abstractmethod
    def loss(self, outputs: Tensor, targets: Targets, **options: Any) -> Tensor:
        """The mean loss over images, a scalar in fp32."""

    def measure(self, outputs: Tensor, targets: Targets) -> dict[str, Tensor]:
        """Scalars worth logging beside the loss, of a batch in training."""
        return {}

    # Judging and answering.

    @abstractmethod
    def metric(self) -> Metric:
        """An empty metric of this task."""

    def metric_for(self, source: Source) -> Metric:
        """An empty metric for the targets of ``source``, which may be of another kind than those of the training."""
        return self.metric()

    @abstractmethod
    def decode(self, outputs: Tensor, frames: Frames | None = None, *, top: int = 5) -> Sequence[Answer]:
        """Outputs as answers, one an image.

        Args:
            outputs: what calling the task gave.
            frames: what the images show of their pictures, for answers that lie in these.
            top: how many labels or objects an answer lists at most.
        """

    def answer_options(
        self, *, top: int = 5, threshold: float | None = None, side: int | None = None
    ) -> dict[str, Any]:
        """Further arguments of `decode`, from what users ask for. Raises `ConfigError` for what answers do not have.

        Args:
            top: labels that an answer lists, at most.
            threshold: the least score of an object.
            side: pixels of the longer side of a map of classes, at most.
        """
        self.check_can_answer(top)
        for name, value, lacking in (
            ("threshold", threshold, "objects with a score"),
            ("side", side, "map of classes"),
        ):
            if value is not None:
                what = f"{name} is {value}, and answers of the task {self.name} have no {lacking}"
                raise ConfigError(what, f"leave {name} out")
        return {"top": top}

    def reply_arrays(self, outputs: Tensor, frames: Frames | None = None) -> dict[str, NDArray | list[str]]:
        """Named arrays or words, the images first, for clients that want numbers (the Open Inference Protocol)."""
        return {"outputs": outputs.numpy()}

    # A picture in windows.

    def windows(self, zoom: float) -> Windows | None:
        """How a picture is shown ``zoom`` times as large; None for 1, where it is shown whole. Raises `ConfigError`."""
        if zoom == 1:
            return None
        if not self.draws_answers:
            what = f"zoom is {zoom:g}, and a model of the task {self.name} answers for whole pictures"
            raise ConfigError(what, "leave zoom out")
        return Windows(self.preprocessing, zoom)

    def join_windows(self, outputs: Iterable[Tensor], views: Frames) -> Tensor:
        """The outputs for one picture, as `decode` and `metric` take them with the first of ``views``.

        Args:
            outputs: what calling the task gave for the `Windows` of the picture, for some of them after others.
            views: what they show of the picture; the first shows the whole.

        Raises:
            ConfigError: the answers of the task do not lie in the picture.
        """
        raise ConfigError(f"answers of the task {self.name} are about whole pictures", "show whole pictures")

    # Leaving PyTorch.

    @property
    def graph_outputs(self) -> tuple[str, ...]:
        """The names of what an exported graph gives, what calling the task gives first."""
        return ("outputs",)

    def graph(self, images: Tensor) -> dict[str, Tensor]:
        """What an exported graph gives for normalised images (B, C, H, W), by name."""
        return {"outputs": self(images)}

    def agreement(self, expected: Mapping[str, Tensor], given: Mapping[str, Tensor]) -> float:
        """The share of images to which two graphs give the same answer, in [0, 1]."""
        name = self.graph_outputs[0]
        close = (expected[name] - given[name]).abs() <= 1e-3 * expected[name].abs().amax().clamp(min=1e-30)
        return float(close.reshape(len(close), -1).all(1).double().mean())

    def difference(self, expected: Mapping[str, Tensor], given: Mapping[str, Tensor]) -> float:
        """How far two graphs' outputs are apart, where 0 is equal; see `largest_difference`."""
        return largest_difference(expected, given)

    def read_graph(self, outputs: Mapping[str, Tensor]) -> Tensor:
        """What `decode` and `metric` take, from the outputs of an exported graph: by default the first."""
        return outputs[self.graph_outputs[0]]

    def run_graph(self, run: Callable[[Tensor], Mapping[str, Tensor]]) -> None:
        """Lets ``run``, from images to all outputs of an exported graph, stand for what this task has of its own."""
        if self.own:
            self.own = nn.ModuleDict()
            self.compute = lambda images: self.read_graph(run(images))  # type: ignore[method-assign]

    # What every task does alike.

    def compute(self, images: Tensor) -> Tensor:
        """Normalised images (B, C, H, W) to the outputs of this task: by default those of the backbone's head."""
        return self.backbone(images)

    def forward(self, images: Tensor) -> Tensor:
        """The outputs for normalised images (B, C, H, W), as `compute` returns them; (B, K) logits of a classifier."""
        return self.compute(images)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.backbone, name) if name in BACKBONE_VERBS else super().__getattr__(name)

    def check_can_answer(self, top: int = 1) -> None:
        """Raises `ConfigError` where there is no head, or ``top`` asks for no answer."""
        if not self.classes:
            remedy = "train one: `vitrail train DATA --init MODEL`; `vitrail embed` gives its features"
            raise ConfigError("the model has no head to predict with", remedy)
        if top < 1:
            raise ConfigError(f"top is {top}", "ask for at least one label")

    @property
    def transform(self) -> Transform:
        """A function from one picture to the network's input (C, H, W) on the CPU, for a ``Dataset`` of one's own."""
        return Transform(self.preprocessing)

    def preprocess(self, pictures: Picture | Iterable[Picture]) -> Tensor:
        """Pictures as the network takes them, on its device: (B, C, H, W) float32.

        Args:
            pictures: one or several of: paths of image files; Pillow images of any mode and size; the bytes of image files;
                arrays (H, W, C) or (H, W); tensors (C, H, W); uint8, or floats in [0, 1]. Four dimensions are several
                pictures, and the path of a folder stands for all images in it.

        Raises:
            DataError: names the picture that cannot be used, and why.
        """
        return self._read(list_pictures(pictures))[0]

    def _read(self, pictures: Sequence[Picture]) -> tuple[Tensor, Frames]:
        """Inputs (B, C, H, W) and what they show of the pictures."""
        inputs, sizes = [torch.empty(0, self.preprocessing.channels, *self.preprocessing.size)], []
        for place, picture in enumerate(pictures):
            image, size = self.transform.read(picture, f"picture {place}")
            inputs.append(image[None])
            sizes.append(size)
        return torch.cat(inputs).to(device_of(self)), Frames.seen(self.preprocessing, sizes)

    def picture(self, picture: Picture) -> np.ndarray:
        """One picture resized and cropped but not normalised, as a person would look at what the network sees.

        Returns:
            uint8 (C, H, W), or float32 in [0, 1] where floats were given.

        Raises:
            BadImage: it cannot be used.
        """
        return self.preprocessing.picture(to_pixels(picture, self.preprocessing))

    def _answer(self, pictures: Sequence[Picture], windows: Windows | None) -> tuple[Tensor, Frames]:
        """The outputs for pictures, in windows for a single one, and what they show of these."""
        if windows is None:
            images, frames = self._read(pictures)
            return self(images), frames
        images, size = Transform(windows).read(pictures[0], "the picture")  # (V, C, h, w)
        views = Frames.of_windows(windows, size)
        parts = images.to(device_of(self)).split(WINDOWS)
        return self.join_windows(map(self, parts), views), views.take(np.array([0]))

    def predict(
        self, pictures: Picture | Iterable[Picture], top: int = 5, *, threshold: float | None = None, zoom: float = 1
    ) -> Answers[Any]:
        """The `Answer` for each picture, in a list with ``to_pandas()``; its ``key`` is the path, if one was given.

        Args:
            pictures: what `preprocess` takes.
            top: how many labels an answer lists, at most.
            threshold: the least score of an object; by default that of the detector.
            zoom: shows pictures this many times as large as they fit into the input, in overlapping windows, to a detector
                or a segmenter; 1 shows whole pictures.
        """
        options = self.answer_options(top=top, threshold=threshold)
        pictures, windows = list_pictures(pictures), self.windows(zoom)
        together = BATCH if windows is None else 1
        was_training = self.training
        self.eval()
        try:
            with torch.inference_mode():
                answers: list[Answer] = []
                for first in range(0, len(pictures), together):
                    outputs, frames = self._answer(pictures[first : first + together], windows)
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
