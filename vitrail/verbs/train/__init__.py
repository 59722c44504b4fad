"""`vitrail train`: from options to a run, on data by their name or as a program holds them."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, TypedDict, Unpack

from vitrail.config.schema import Precision, Run, TaskAlias
from vitrail.errors import ConfigError, Interrupted, Preempted
from vitrail.runtime.launch import is_launched, launch
from vitrail.runtime.progress import LogFunction, log_nothing, to_stderr
from vitrail.verbs import options
from vitrail.verbs.verb import Python, Sets, options_of, verb

if TYPE_CHECKING:
    from vitrail.training.train import Result


class Training(TypedDict, total=False):
    """The options that trainings with and without labels share."""

    model: Annotated[
        Any,
        Sets(
            "model.name",
            "in Python also a model to start from, or what `vitrail.register_model` takes, by its own name",
        ),
    ]
    init: Annotated[
        Any,
        Sets(
            "model.init",
            "a name of public weights such as vit-ti16 or hf:owner/name, a run, a model folder, or a .safetensors, .pth or .npz "
            "file; `auto` takes public weights, as photographs do by default; `none` trains from scratch; in Python also a "
            "`Classifier` or its backbone",
        ),
    ]
    size: Annotated[options.Pixels | None, Sets("model.size", "such as 384 or 384x256")]
    epochs: Annotated[float | None, Sets("schedule.epochs")]
    steps: Annotated[int | None, Sets("schedule.steps")]
    time: Annotated[str | float | None, Sets("schedule.time", "or 90s, 10m, 1h30m")]
    batch: Annotated[int | None, Sets("data.batch")]
    lr: Annotated[float | None, Sets("optim.lr")]
    limit: Annotated[int | None, Sets("data.limit")]
    fraction: Annotated[str | float | None, Sets("data.fraction", "such as 10%")]
    seed: Annotated[int | None, Sets("seed")]
    out: Annotated[options.File | None, "The run directory; a new one under runs/ by default."]
    resume: Annotated[options.File | None, "Resume the run in this directory, with its own settings."]
    config: Annotated[options.File | None, "A YAML file of settings that override the recipe's; flags override both."]
    set: Annotated[Sequence[str] | None, "One setting of the config, e.g. --set optim.clip=1."]
    workers: Annotated[int | None, Sets("data.workers")]
    device: Annotated[str | None, Sets("compute.device")]
    precision: Annotated[Precision | None, Sets("compute.precision")]
    max_bad: Annotated[str | float | None, Sets("data.max_bad", "such as 1%")]
    columns: Annotated[str | Mapping[str, str] | None, Sets("data.columns", "such as path=file,label=breed")]
    pixel_range: Annotated[str | Sequence[float] | None, Sets("data.pixel_range", "such as 0,4095")]
    max_pixels: Annotated[int | None, Sets("data.max_pixels")]
    dry_run: Annotated[bool, "Print the plan, and an estimate of time and memory from a few measured steps.", False]
    quiet: options.Quiet
    transform: Annotated[
        Callable[[Any], Any] | None,
        Python(
            "A callable or ``nn.Module`` from a decoded picture to a tensor (C, h, w), uint8 or floats in [0, 1], in place of "
            "the recipe's crops. It runs where images are read, so with workers it must pickle. Normalising is the model's: "
            '``set=["model.preprocessing={mean: [0.485, 0.456, 0.406], std: [0.229, 0.224, 0.225]}"]``.'
        ),
    ]
    log: Annotated[
        LogFunction | None, Python("With ``dry_run``, called with each line of the plan as soon as it is known.")
    ]
    callbacks: Annotated[
        Sequence[Any] | None,
        Python(
            "Objects of `vitrail.Callback`, called after each step, after each evaluation and at the end; they may end the "
            "training early."
        ),
    ]
    settings: Annotated[Sequence[str] | None, Python("Another name of ``set``.")]


@verb("init", "epochs", "size", "lr", "out")
def train(
    data: Annotated[
        Any,
        "A folder of class folders, a manifest (CSV, JSONL, Parquet), arrays (.npy, .npz), or the built-in `digits`; in Python "
        "also ``(images, labels)`` arrays, a data frame, a list of (path, label), a ``Dataset`` of torch or Hugging Face, a "
        "mapping of splits, or a `vitrail.data.sources.source.Source`.",
    ] = None,
    *,
    task: Annotated[TaskAlias | None, Sets("task")] = None,
    recipe: Annotated[
        str | None,
        "Default values of all settings; `finetune` with --init, else `small-data`; `segment` and `detect` for these tasks.",
    ] = None,
    teacher: Annotated[str | Path | None, Sets("objective.teacher", "it has the same classes (DeiT)")] = None,
    tune_lr: Annotated[
        bool,
        "Choose the learning rate first: trainings of half the length, compared on the validation split, at rates a factor 2 "
        "apart.",
    ] = False,
    head: Annotated[
        Literal["fused", "linear", "queries"] | None,
        "What gives the masks: of `segment`, fused, linear or queries (EoMT); of `instances`, prototypes by default, or queries.",
    ] = None,
    head_only: Annotated[bool, Sets("model.head_only")] = False,
    lora: Annotated[int | None, Sets("model.adapters.rank")] = None,
    freeze_until: Annotated[int | None, Sets("model.freeze_until")] = None,
    keep_best: Annotated[bool, Sets("save.best")] = False,
    patience: Annotated[int | None, Sets("save.patience")] = None,
    folds: Annotated[
        int | None,
        "Cross-validation: train so many times, each time without another part of the images, evaluate on that part, and train "
        "the model of the run on all.",
    ] = None,
    loss: Annotated[Any, Sets("objective.loss", "in Python also a function or module")] = None,
    class_weights: Annotated[
        str | Mapping[str, float] | None, Sets("objective.class_weights", "such as rare=5,other=2")
    ] = None,
    balance: Annotated[bool, Sets("data.balance")] = False,
    metrics: options.OwnMetrics = None,
    command: options.Command = "vitrail.train",
    **shared: Unpack[Training],
) -> Result | Any:
    """Trains a ViT on your images: photographs from public weights, which are downloaded once, others from scratch (--init).

    Running the same command with the same --out resumes the run.

    Returns:
        The finished run with its folder, report and figures; ``.load()`` gives the `Classifier`. With ``dry_run`` the plan.

    Raises:
        ConfigError: invalid settings, or the folder of another run.
        DataError: data that cannot be used for training.
    """
    given = {**locals(), **shared}
    if loss is not None and not isinstance(loss, str):
        given["loss"] = options.name_of_loss(loss)
    return start(train, given, labels=True)


def start(verb: Callable[..., Any], given: Mapping[str, Any], *, labels: bool) -> Result | str:
    """Trains what the arguments ask for, with or without ``labels``; with ``dry_run`` returns the plan."""
    from vitrail.data.sources.open import FoundData
    from vitrail.data.workers import refuse_in_worker
    from vitrail.runs.folder import default_folder
    from vitrail.runtime.distributed import join
    from vitrail.training.dry_run import dry_run
    from vitrail.training.train import train

    refuse_in_worker()
    if given["settings"] is not None:
        if given["set"] is not None:
            raise ConfigError("the option 'set' is given twice, once as 'settings'", "give it once")
        given = {**given, "set": given["settings"]}
    if given.get("metrics") is not None:
        names = options.names_of_metrics(given["metrics"])
        given = {**given, "metrics": None, "set": [*(given["set"] or ()), f"save.metrics={names}"]}
    if given.get("head") is not None:
        given = {**given, "head": None, "set": [*(given["set"] or ()), f"model.head.head={given['head']}"]}
    if given["callbacks"]:
        check_callbacks(given["callbacks"])
    if given["model"] is not None and not isinstance(given["model"], str):
        given = {**given, **read_model_argument(given["model"], given["init"])}
    if given["init"] is not None and not isinstance(given["init"], str | Path):
        with write_init(verb, given, labels=labels) as written:
            return start(verb, written, labels=labels)
    run, folder, held, notes = compose(verb, given, labels=labels)
    if given.get("folds") is not None:
        from vitrail.verbs.train.folds import check_folds

        check_folds(given["folds"], run, tune_lr=given["tune_lr"], callbacks=bool(given["callbacks"]))
        held = replace(held, opened=None) if isinstance(held, FoundData) else held  # each fold opens them anew
    if given["dry_run"]:
        if given.get("folds"):
            run = replace(run, data=replace(run.data, fold=f"0/{given['folds']}"))
        plan: list[str] = []

        def note(line: str) -> None:
            plan.append(line)
            if given["log"] is not None:
                given["log"](line)

        for line in notes:
            note(line)
        if given.get("tune_lr"):
            length = "what follows is the training after it"
            note(f"note     --tune-lr first trains 3 to 5 times for half the length; {length}")
        if given.get("folds"):
            note(f"note     --folds first trains {given['folds']} times; what follows is one of these trainings")
        dry_run(run, data=held, log=note)
        return "\n".join(plan)
    how: dict[str, Any] = {"data": held, "transform": given["transform"]}
    finish = {
        "quiet": given["quiet"],
        "command": given["command"],
        "notes": notes,
        "callbacks": given["callbacks"] or (),
    }
    if not given.get("tune_lr") and not given.get("folds"):
        return train(run, out=folder, **finish, **how)
    from vitrail.verbs.train.folds import train_folds
    from vitrail.verbs.train.tune_rate import tune_rate

    with join(run.compute.device, run.compute.timeout) as ranks:
        out = folder or ranks.run_on_rank0(lambda: default_folder(run))
        log = log_nothing if given["quiet"] or not ranks.first else to_stderr
        try:
            if given.get("folds"):
                run = train_folds(run, out, given["folds"], log=log, ranks=ranks, **finish, **how)
            else:
                run = tune_rate(run, out, log=log, ranks=ranks, **how)
        except (Preempted, Interrupted) as error:
            raise ranks.collective_error(type(error)(error.what, f"run the same command with --out {out}")) from None
        return train(run, out=out, ranks=ranks, **finish, **how)


def check_callbacks(callbacks: Any) -> None:
    """Raises `ConfigError` for anything but a list of objects of `vitrail.Callback`."""
    from vitrail.training.callbacks import Callback

    is_list = isinstance(callbacks, list | tuple)
    if wrong := [each for each in callbacks if not isinstance(each, Callback)] if is_list else [callbacks]:
        what = f"callbacks {'has' if is_list else 'is'} {wrong[0]!r:.60}"
        remedy = "give a list of objects of classes derived from vitrail.Callback: callbacks=[StopEarly()]"
        raise ConfigError(what, remedy)


def read_model_argument(model: Any, init: Any) -> dict[str, Any]:
    """Returns ``model`` and ``init`` where the first is no name: a model to start from, or a function or class that builds a
    network, which is registered under its own name. Raises `ConfigError` for anything else.
    """
    from torch.nn import Module

    from vitrail.models import Backbone, register_model
    from vitrail.tasks import Task

    if isinstance(model, Task | Backbone):
        if init is not None:
            raise ConfigError("model is a model to start from, and init is given too", "give one of them")
        return {"model": None, "init": model}
    name = getattr(model, "__name__", "")
    if isinstance(model, Module) or not callable(model) or not name.isidentifier():
        what = f"model is a {type(model).__name__}, and a run must be able to build its network anew"
        remedy = "give the class or a function that builds it, with the arguments in_channels and image_size"
        raise ConfigError(what, f"{remedy}, or register it: vitrail.register_model(NAME, BUILD)")
    register_model(name, model)
    return {"model": name}


@contextmanager
def write_init(
    verb: Callable[..., Any], given: Mapping[str, Any], *, labels: bool
) -> Generator[Mapping[str, Any], None, None]:
    """Writes the model that ``init`` is into the folder of the run, so that it can be resumed; yields arguments that name both.

    A run that has begun keeps the file that is there. A dry run leaves nothing. Raises `ConfigError` for anything but a model.
    """
    from vitrail.runs.folder import default_folder
    from vitrail.weights.native import as_task, save

    model = as_task(given["init"])
    if is_launched():
        raise ConfigError(
            "a model in memory, in several processes", "save it first, vitrail.save(model, PATH), and give the path"
        )
    if given["dry_run"]:
        with TemporaryDirectory() as temporary:
            yield {**given, "init": save(model, Path(temporary) / "init.safetensors")}
        return
    composed = compose(
        verb, {**given, "init": "none"}, labels=labels
    )  # refuses other mistakes before anything is written
    folder = composed.folder or default_folder(composed.run)
    path = folder / "init.safetensors"
    if not (folder / "config.yaml").exists() or not path.exists():
        save(model, path)
    yield {**given, "init": path, "out": None if given["resume"] else folder}


class Composed(NamedTuple):
    """The run that arguments ask for, its folder, if one was given, and the data, if not those that the run names.

    ``notes`` are lines for its log.
    """

    run: Run
    folder: Path | None
    data: Any
    notes: tuple[str, ...]


def compose(verb: Callable[..., Any], given: Mapping[str, Any], *, labels: bool) -> Composed:
    """Composes the run that the arguments ask for, with weights to start from where they leave that open.

    Raises `ConfigError`, `DataError` or `CheckpointError`.
    """
    from vitrail.config.compose import check_objective, compose_run, find_start
    from vitrail.config.units import columns_of_table
    from vitrail.data.sources.open import find_data

    data = given["data"]
    is_named = data is None or isinstance(data, str | Path)
    source = None if data is None else str(data) if is_named else type(data).__name__
    paths = {name: Path(given[name]) if given.get(name) else None for name in ("out", "resume", "config")}
    searched = labels and data is not None and paths["resume"] is None
    columns = columns_of_table(given["columns"]) if given.get("columns") else {}
    found = find_data(source if is_named else data, columns, given.get("task")) if searched else None
    asked: dict[str, Any] = {
        "recipe": given.get("recipe"),
        "flags": to_settings(verb, given, source),
        "settings": given.get("set") or (),
        "annotated": found.task if found else None,
        **paths,
    }
    run, folder = compose_run(**asked)
    check_objective(run, labels=labels)
    notes: list[str] = []
    start = find_start(given.get("recipe"), paths["config"], asked["flags"], asked["settings"]) if found else "given"
    if found is not None and start != "given":
        from vitrail.verbs.train.starting_weights import choose_weights, open_found

        found = open_found(found, run)
        if init := choose_weights(run, found, folder, required=start == "auto", log=notes.append):
            run, folder = compose_run(**asked, init=init)
    return Composed(run, folder, found if is_named else data, tuple(notes))


def to_settings(verb: Callable[..., Any], given: Mapping[str, Any], source: str | None) -> dict[str, Any]:
    """Returns the arguments that set settings, and the name of the data, nested as `compose_run` takes them; paths as strings.

    A switch that is off is not given: the recipe or the file of settings may turn it on.
    """
    tree: dict[str, Any] = {"data": {"source": source}}
    for name, option in options_of(verb).items():
        value = given.get(name)
        if not isinstance(option.meaning, Sets) or value is None or value is False:
            continue
        *groups, key = option.meaning.key.split(".")
        inner = tree
        for group in groups:
            inner = inner.setdefault(group, {})
        inner[key] = str(value) if isinstance(value, Path) else value
    return tree


def make_run(verb: Callable[..., Any], *, labels: bool) -> Callable[..., int]:
    """Returns the command of `train` or `pretrain`, which prints the path of the report, or the plan of a cluster."""

    def run(
        data: str | None = None,
        /,
        *,
        devices: Annotated[
            str | None,
            "Train on this many devices of this machine, or on `all` GPUs: one process for each. With --dry-run a cluster, e.g. "
            "64xH100, for which memory and time are estimated.",
        ] = None,
        restarts: Annotated[
            int, "With --devices: maximum restarts, from the newest checkpoint, after a worker failure."
        ] = 0,
        network: Annotated[
            str | None, "With --dry-run --devices: network cards of a machine and their rate, e.g. 8x400Gb."
        ] = None,
        json: options.AsJson = False,
        **given: Any,
    ) -> int:
        import os
        import sys

        from vitrail.verbs.printing import command_line, one_line, print_beside

        show = print_beside(json)
        if devices is not None and given.get("dry_run"):
            from vitrail.config.compose import compose_run
            from vitrail.verbs.train.cluster_plan import plan_cluster

            config = options.to_path(given.get("config"))
            settings, further = to_settings(verb, given, data or "images"), given.get("set") or ()
            planned, _ = compose_run(recipe=given.get("recipe"), flags=settings, settings=further, config=config)
            rows = plan_cluster(planned, data, devices, network, show)
            if json:
                print(one_line({"plan": rows}))
            return 0
        if devices is not None and not is_launched():
            compose(verb, {**given, "data": data}, labels=labels)  # mistakes are reported here, once
            return launch(devices, sys.argv[1:], restarts=restarts)
        result = verb(data, command=command_line(), log=show, **given)
        if os.environ.get("RANK", "0") != "0":  # of several ranks the first one prints
            return 0
        is_plan = isinstance(result, str)
        if not is_plan:
            show(f"report: {result.report}")
        if json:
            print(one_line({"plan": result} if is_plan else result.to_dict()))
        return 0

    return run


run = make_run(train, labels=True)
