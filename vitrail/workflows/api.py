"""The verbs for Python: every verb of the command line is a function of `vitrail` with the same name and the same options.

Those that train stand in `vitrail.workflows.train`, those that look inside a model in `vitrail.workflows.api_inspecting`, those
of data sets in `vitrail.workflows.api_data`, and the options with their help texts in `vitrail.config.flags_inference`. Two have
another name: `list_models` is ``vitrail models``, and `list_settings` ``vitrail settings``.

Each function imports what it needs when it is called. All of them raise `ConfigError` for an unknown option, `DataError` for
data that cannot be opened, and `CheckpointError` for a model that cannot be read (`vitrail.errors`). A ``log`` is called with
each line of what is assumed and found.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Unpack

from vitrail.config.flags_inference import (
    ConvertFlags,
    ExportFlags,
    ExportToFlags,
    LayoutFlags,
    ModelFlags,
    ModelsFlags,
    ProbeFlags,
    ProtocolFlags,
    ServeFlags,
    SettingsFlags,
    TransferFlags,
    TransferOutFlags,
)
from vitrail.config.keywords import takes
from vitrail.config.units import part, split_commas, whole_numbers
from vitrail.errors import ConfigError, nearest
from vitrail.rows import Records
from vitrail.runtime.progress import Say, to_stderr
from vitrail.workflows.api_options import (
    choose_cache,
    parse_options,
    parse_weights,
    to_path,
)

if TYPE_CHECKING:
    from vitrail.config.settings import Setting
    from vitrail.inference.parts_check import PartsCheck
    from vitrail.reports.transfer.results import Transfer
    from vitrail.runtime.distributed import Ranks
    from vitrail.tasks.classification.classifier import Classifier
    from vitrail.workflows.convert import Converted
    from vitrail.workflows.export import Exported
    from vitrail.workflows.models import ModelFacts
    from vitrail.workflows.probe import Probe

    Model = str | Path | Classifier
    Inputs = str | Path | Sequence[str | Path]


@takes(ProtocolFlags, ProbeFlags)
def probe(
    model: Model,
    data: Any,
    protocol: Literal["linear", "knn", "fewshot"] = "linear",
    *,
    log: Say = to_stderr,
    ranks: Ranks | None = None,
    **flags: Unpack[ProbeFlags],
) -> Probe:
    """Evaluates a model by its frozen features, on labelled images of any classes.

    Args:
        model: anything `vitrail.load` takes, or a `Classifier`. It needs no head.
        data: anything that `train` takes. It learns from the split train and is judged on test, else val, else a part that is
            held out of train.
        ranks: processes that compute this together, each of which calls this and returns the same (`distributed.join`).

    Raises `DataError` for several labels an image, images without labels, or fewer than two classes.
    """
    from vitrail.workflows.probe import probe as judge

    return judge(
        model,
        data,
        protocol,
        k=flags["k"],
        shots=whole_numbers(flags["shots"]),
        seeds=flags["seeds"],
        against=flags["against"],
        **parse_options(flags),
        cache=choose_cache(flags["cache"]),
        say=log,
        ranks=ranks,
    )


@takes(TransferOutFlags, TransferFlags)
def transfer(
    model: str | Path,
    data: Inputs,
    out: str | Path,
    *,
    command: str = "vitrail.transfer",
    log: Say = to_stderr,
    ranks: Ranks | None = None,
    **flags: Unpack[TransferFlags],
) -> Transfer:
    """Evaluates a model on several data sets, by its frozen features and by fine-tuning; the same ``out`` is resumed.

    Args:
        model: what `vitrail.load` takes.
        data: one or several paths or built-in names.
        command: how the report names the call.
        ranks: processes that compute this together, each of which calls this and returns the same (`distributed.join`).

    Raises `ConfigError` for invalid settings, or others than those that ``out`` was begun with.
    """
    from vitrail.workflows.transfer import Tuning
    from vitrail.workflows.transfer import transfer as judge

    settings = tuple(flags["set"] or ())
    return judge(
        model,
        data,
        Path(out),
        protocols=split_commas(flags["protocols"]),
        k=flags["k"],
        shots=whole_numbers(flags["shots"]),
        tuning=Tuning(epochs=flags["epochs"], steps=flags["steps"], settings=settings, seeds=flags["seeds"]),
        **parse_options(flags),
        vtab=flags["vtab"],
        cache=choose_cache(flags["cache"]),
        command=command,
        say=log,
        ranks=ranks,
    )


@takes(LayoutFlags, ConvertFlags)
def convert(
    source: str | Path,
    destination: str | Path,
    to: Literal["native", "google", "timm", "huggingface"] | None = None,
    *,
    log: Say = to_stderr,
    **flags: Unpack[ConvertFlags],
) -> Converted | Any:
    """Writes a model in another layout and verifies its outputs; or compares two.

    Args:
        source: what `vitrail.load` takes; save a model in memory first, with `vitrail.weights.native.save_model`.
        destination: a new folder, or a file; with ``diff`` the other model.

    Returns:
        What was written and how it was proved; with ``diff`` the difference.

    Raises `CheckpointError` if the layout cannot express the model, or the copy computes other outputs; then nothing is left.
    """
    if flags.pop("diff"):
        from vitrail.workflows.compare import compare

        if to or any(flags.values()):
            raise ConfigError("--diff compares two models as they are", "leave the other flags out, except --json")
        return compare(source, destination, log=log)
    if to is None:
        raise ConfigError(
            "no layout was named", "--to native, google, timm or huggingface; or --diff to compare two models"
        )
    from vitrail.weights.adapt import read_classes
    from vitrail.workflows.convert import convert as write

    head, weights = flags["head"], parse_weights(flags)
    return write(
        source,
        destination,
        to,
        force=flags["force"],
        classes_file=flags["classes"],
        preprocessing=weights["preprocessing"],
        image_size=weights["size"],
        grid=weights["grid"],
        in_channels=flags["channels"],
        classes=read_classes(Path(head)) if isinstance(head, str | Path) else head,
        log=log,
    )


@takes(ExportToFlags, ExportFlags)
def export(
    model: Model,
    out: str | Path | None = None,
    to: Literal["onnx", "program", "huggingface", "timm", "google"] = "onnx",
    *,
    log: Say = to_stderr,
    **flags: Unpack[ExportFlags],
) -> Exported | Any:
    """Writes a model as a file that runs without vitrail, compared with the model on images before it is put in its place.

    Args:
        model: anything `vitrail.load` takes, or a `Classifier`.

    Returns:
        What was written and how it was proved; of layouts of weights what `convert` returns.

    Raises `CheckpointError` if the file computes other outputs; then nothing is left.
    """
    from vitrail.inference.options import InferenceOptions
    from vitrail.workflows.export import export_model

    own: dict[str, Any] = {name: flags[name] for name in ("int8", "pictures", "check", "images", "tolerance", "force")}
    inference = InferenceOptions(**parse_weights(flags), max_bad=part(flags["max_bad"]), quiet=flags["quiet"])
    return export_model(model, out, to, classes=to_path(flags["classes"]), inference=inference, say=log, **own)


@takes(ServeFlags)
def serve(model: str | Path | None = None, **flags: Unpack[ServeFlags]) -> None:
    """Answers over HTTP until the process is told to stop; as it listens to signals it runs in the main thread only.

    Args:
        model: what `vitrail.load` takes; with ``runs`` it may be left out.
    """
    from vitrail.workflows.serve import serve as run

    of_options = {*ModelFlags.__annotations__, "tune"}
    own: dict[str, Any] = {name: value for name, value in flags.items() if name not in of_options}
    run(model, **parse_options(flags), **own)


@takes(ModelsFlags)
def list_models(name: str | None = None, **flags: Unpack[ModelsFlags]) -> Records[ModelFacts]:
    """What is known of every model, or of one: its config, its cost, its paper and published accuracy."""
    from vitrail.workflows.models import list_models as describe

    return Records(describe(name, **flags))


@takes(SettingsFlags)
def list_settings(name: str | None = None, **flags: Unpack[SettingsFlags]) -> Records[Setting]:
    """The settings of a training run by key, or those of one group: type, value in a recipe, flag and meaning."""
    from vitrail.config.settings import list_settings as describe

    return describe(name, **flags)


def check_parts(folder: str | Path, *, quiet: bool = False) -> PartsCheck:
    """Reads a folder of parts, as `predict` and `embed` write it, and names parts that are missing, damaged or foreign.

    Raises:
        DataError: the folder has no plan of parts.
    """
    from vitrail.inference.parts_check import check_parts as check

    return check(Path(folder), quiet=quiet)


def doctor(*, tune: Literal["show", "clear"] | None = None) -> Mapping[str, object]:
    """What this machine has: versions, devices, optional packages, disk, the caches, and a numeric self-check.

    Args:
        tune: in place of that, what was measured of each network to choose its precision and threads; ``"clear"`` removes it,
            so that the next training measures again.
    """
    from vitrail.inference.feature_cache import describe_cache
    from vitrail.runtime.machine import examine
    from vitrail.runtime.tuning import forget_choices, list_choices
    from vitrail.text import plural

    if tune == "clear":
        return {"removed": forget_choices()}
    if tune == "show":
        return list_choices()
    if tune is not None:
        raise ConfigError(f"tune is {tune!r}", nearest(str(tune), ("show", "clear")))
    return {**examine(), "feature cache": describe_cache(), "tuning cache": plural(len(list_choices()), "network")}
