"""vitrail: the Vision Transformer workbench.

The public names are imported when they are first used, so ``import vitrail`` costs nothing and loads no torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vitrail.analysis.visualize import visualize_attention as visualize_attention
    from vitrail.models import MODELS as MODELS
    from vitrail.tasks.classification import Classifier as Classifier
    from vitrail.tasks.classification import create_model as create_model
    from vitrail.weights import load as load
    from vitrail.workflows.api import pretrain as pretrain
    from vitrail.workflows.api import train as train
    from vitrail.workflows.convert import convert as convert
    from vitrail.workflows.evaluate import evaluate as evaluate
    from vitrail.workflows.export import export_model as export_model
    from vitrail.workflows.probe import probe as probe
    from vitrail.workflows.transfer import transfer as transfer

_HOMES = {
    "Classifier": "vitrail.tasks.classification",
    "MODELS": "vitrail.models",
    "convert": "vitrail.workflows.convert",
    "create_model": "vitrail.tasks.classification",
    "evaluate": "vitrail.workflows.evaluate",
    "export_model": "vitrail.workflows.export",
    "load": "vitrail.weights",
    "pretrain": "vitrail.workflows.api",
    "probe": "vitrail.workflows.probe",
    "train": "vitrail.workflows.api",
    "transfer": "vitrail.workflows.transfer",
    "visualize_attention": "vitrail.analysis.visualize",
}
__all__ = [
    "MODELS",
    "Classifier",
    "convert",
    "create_model",
    "evaluate",
    "export_model",
    "load",
    "pretrain",
    "probe",
    "train",
    "transfer",
    "visualize_attention",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'vitrail' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
