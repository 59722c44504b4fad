"""The flags of every verb that uses a model, and of those that use it on images."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

if TYPE_CHECKING:
    from vitrail.inference.options import InferenceOptions


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class ModelFlags:
    """How the model is read.

    Parameters
    ----------
    classes
        A text file that names the outputs, one a line, for weights that carry no names.
    crop
        Pixels the network sees, as 384 or 384x256 (height x width); positions are resized.
    resize
        Pixels of the shorter side before the crop, or squash or none.
    mean
        Mean of the channels, of values in [0, 1]: 0.485,0.456,0.406.
    std
        Their standard deviation, likewise.
    device
        cuda, mps or cpu.
    precision
        fp32 or bf16.
    """

    classes: Path | None = None
    crop: str | None = None
    resize: str | None = None
    mean: str | None = None
    std: str | None = None
    device: str | None = None
    precision: Literal["fp32", "bf16"] = "fp32"

    def options(self, **of_images: Any) -> InferenceOptions:
        """The same for `engine`, with what it is told ``of_images``."""
        from vitrail.config.units import numbers, size_in_pixels
        from vitrail.inference.options import InferenceOptions

        told: dict[str, Any] = {}
        if self.resize is not None:
            told["resize"] = int(self.resize) if self.resize.isdigit() else self.resize
        told |= {name: numbers(given) for name in ("mean", "std") if (given := getattr(self, name)) is not None}
        return InferenceOptions(
            size=None if self.crop is None else size_in_pixels(self.crop),
            preprocessing=told,
            device=self.device,
            precision=self.precision,
            **of_images,
        )


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class InferenceFlags(ModelFlags):
    """How the model and the images are read.

    Parameters
    ----------
    batch
        Images at a time; the answers do not depend on it.
    workers
        Processes that read images.
    max_bad
        Stop when more of the images are bad than this; 1%, but 100% where images are only named.
    quiet
        No progress.
    """

    batch: int = 64
    workers: int = 0
    max_bad: str | None = None
    quiet: Annotated[bool, Parameter(negative="")] = False

    def reading_images(self, *, max_bad: str) -> InferenceOptions:
        """`options` with these; ``max_bad`` is what holds where the flag is not given."""
        from vitrail.config.units import part

        share = part(self.max_bad or max_bad)
        return self.options(batch=self.batch, workers=self.workers, max_bad=share, quiet=self.quiet)
