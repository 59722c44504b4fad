"""Losses, metrics and objectives of the user's own by name, and the modules that register them.

A run, a model file or a command refers to what is not vitrail's by the name under which it was registered. Where a name is not
known the modules named in ``VITRAIL_PLUGINS``, separated by commas, are imported, which register models, losses, metrics,
objectives or tasks; this is how the command line, a server and other processes find them. Nothing here imports torch.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Container, Iterable, Mapping
from importlib import import_module
from typing import Any, TypeVar

from vitrail.errors import ConfigError, nearest

VARIABLE = "VITRAIL_PLUGINS"
FIGURES = (  # of classifiers and of a step, which a metric of one's own would replace
    *("top1", "top5", "mean_recall", "f1_macro", "nll", "ece", "brier", "map", "f1_micro"),
    *("real_top1", "without_label", "unlike", "ood_auroc", "ood_unlike", "ood_images"),
    *("without_tta", "tta_gain"),
    *("images", "loss", "lr", "step", "epoch"),
)
BUILT_IN_LOSSES = ("softmax", "sigmoid", "mse", "smooth-l1")
LOSSES: dict[str, Callable[..., Any]] = {}
METRICS: dict[str, Callable[..., float]] = {}
OBJECTIVES: dict[str, type] = {}
T = TypeVar("T")


def is_registered(name: str, registry: Container[str]) -> bool:
    """Returns whether ``registry`` has ``name`` once the plugins are imported. Raises `ConfigError` as they do."""
    import_plugins()
    return name in registry


@functools.cache
def import_plugins() -> None:
    """Imports the modules that ``VITRAIL_PLUGINS`` names. Raises `ConfigError` for one that cannot be imported."""
    for name in filter(None, map(str.strip, os.environ.get(VARIABLE, "").split(","))):
        try:
            import_module(name)
        except Exception as error:
            what = f"the module {name!r} in {VARIABLE} cannot be imported: {type(error).__name__}: {error}"
            raise ConfigError(what, "correct the name, or add its folder to PYTHONPATH") from error


def find_own(kind: str, name: str, registry: Mapping[str, T], built_in: Container[str] = ()) -> T:
    """Returns the loss, metric or objective that is registered as ``name``. Raises `ConfigError` with the nearest names."""
    if name not in registry and not is_registered(name, registry):
        known = [*built_in, *registry]  # type: ignore[not-iterable]
        raise ConfigError(f"there is no {kind} {name!r}", suggest_name(kind, name, known))
    return registry[name]


def find_loss(name: str | None, built_in: Container[str]) -> Callable[..., Any] | None:
    """Returns the loss that is registered as ``name``; None for one that vitrail has. Raises as `find_own`."""
    return None if name is None or name in BUILT_IN_LOSSES else find_own("loss", name, LOSSES, built_in)


def suggest_name(kind: str, name: str, known: Iterable[str]) -> str:
    """Returns the remedy for an unknown name: the close ones, else all or the first, and how one's own is registered."""
    own = f"one of your own is registered first, by vitrail.register_{kind}({name!r}, ...) or a module in {VARIABLE}"
    if not (known := [*known]):
        return own
    close = nearest(name, known)
    return close if close.endswith("?") else f"{close}; {own}"


def register_loss(name: str, loss: Callable[..., Any]) -> None:
    """Registers a loss, which ``train(loss=name)`` or ``--loss name`` then uses in place of that of the task.

    Args:
        name: of the loss in the settings of a run.
        loss: a function or ``nn.Module`` from outputs and targets to the mean loss over the images, a scalar. A classifier
            gives logits (B, K), and targets are indices (B,), or (B, K) in [0, 1] where labels are mixed, smoothed or several.
            Parameters of a module are trained with the model.

    Raises:
        ConfigError: a loss of vitrail has the name.
    """
    register("loss", name, loss, LOSSES, BUILT_IN_LOSSES)


def register_metric(name: str, metric: Callable[..., float]) -> None:
    """Registers a metric of classifiers, which ``metrics=[name]`` adds to evaluations and reports.

    Args:
        name: of the figure; in records of evaluations during training ``val_name``.
        metric: a function from the probabilities of all images, (N, K) float64, and their targets, indices (N,) or 0 and 1
            (N, K), both NumPy arrays, to a number.

    Raises:
        ConfigError: not an identifier, or the name of a figure of vitrail or of the end of an interval.
    """
    if not name.isidentifier():
        raise ConfigError(f"the metric is called {name!r}", "give a name of letters, digits and _, such as balanced")
    if name.endswith(("_low", "_high")):
        raise ConfigError(f"the metric is called {name!r}, as the end of an interval", "give it another name")
    register("metric", name, metric, METRICS, FIGURES)


def register(kind: str, name: str, value: T, registry: dict[str, T], built_in: Container[str]) -> None:
    """Puts a value of the user's own into ``registry``. Raises `ConfigError` for a name of vitrail's, or no function or class."""
    if name in built_in:
        raise ConfigError(f"{name!r} is a {kind} of vitrail", f"register yours under another name, such as 'my-{name}'")
    if not callable(value):
        raise ConfigError(f"the {kind} {name!r} is a {type(value).__name__}", "give a function or a class")
    registry[name] = value
