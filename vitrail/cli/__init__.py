"""The command line: its commands, errors and exit codes. Each verb imports what it needs when it runs."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Sequence

from cyclopts import App, CycloptsError, UnusedCliTokensError

from vitrail.cli.commands import ARGUMENTS, OTHERS, to_command
from vitrail.errors import DiskError, VitrailError, explain_system
from vitrail.runtime.launch import is_launched, leave_code
from vitrail.runtime.process import explain_bus_errors, keep_large_buffers
from vitrail.verbs import (
    check,
    convert,
    data,
    doctor,
    embed,
    evaluate,
    explain,
    export,
    inspect,
    models,
    predict,
    pretrain,
    probe,
    push,
    search,
    serve,
    settings,
    study,
    train,
    transfer,
    weights,
)
from vitrail.verbs.verb import find_setting, options_of, summary_of


def build_app(only: str | None = None) -> App:
    """Returns the application with all its verbs; with ``only`` the others have no options, for a quick start."""
    app = App(
        name="vitrail",
        help="The Vision Transformer workbench: train, fine-tune, evaluate and use ViTs on your own images.",
        version=_version,
        group_arguments=ARGUMENTS,
        group_parameters=OTHERS,
        help_epilogue="Start with `vitrail train digits`. Errors say what to do; --debug shows the traceback.",
    )
    for name, verb, run in (
        ("train", train.train, train.run),
        ("pretrain", pretrain.pretrain, pretrain.run),
        ("evaluate", evaluate.evaluate, evaluate.run),
        ("probe", probe.probe, probe.run),
        ("transfer", transfer.transfer, transfer.run),
        ("predict", predict.predict, predict.run),
        ("embed", embed.embed, embed.run),
        ("search", search.search, search.run),
        ("check-parts", check.check_parts, check.run_check_parts),
        ("check", check.check_export, check.run_check_export),
        ("explain", explain.explain, explain.run),
        ("inspect", inspect.inspect, inspect.run),
        ("convert", convert.convert, convert.run),
        ("export", export.export, export.run),
        ("push", push.push, push.run),
        ("serve", serve.serve, serve.run),
        ("models", models.list_models, models.run),
        ("settings", settings.list_settings, settings.run),
        ("doctor", doctor.doctor, doctor.run),
    ):
        if only in (None, name):
            app.command(to_command(verb, run), name=name)
        else:
            app.command(App(name=name, help=summary_of(verb)))
    app.command(group := App(name="data", help="Check a data set, or write it as shards."))
    if only in (None, "data"):
        group.command(to_command(data.check_data, data.run_check), name="check")
        group.command(to_command(data.shard_data, data.run_shard), name="shard")
        group.command(to_command(data.index_data, data.run_index), name="index")
    app.command(public := App(name="weights", help="Download public weights."))
    if only in (None, "weights"):
        public.command(to_command(weights.get_weights, weights.run), name="get")
    app.command(studies := App(name="study", help=summary_of(study.study)))
    if only in (None, "study"):
        studies.default(to_command(study.study, study.run))
        for command in (study.work, study.report, study.write):
            studies.command(to_command(command, command))
    return app


def _version() -> str:
    from importlib.metadata import version

    return version("vitrail")


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs one command and leaves with its exit code (0 done, 2 usage, 3 data, 4 checkpoint, 5 diverged, 6 disk, ...)."""
    # waiting threads release their core soon; read when torch is loaded, which no verb has done yet (docs/decisions.md)
    os.environ.setdefault("GOMP_SPINCOUNT", "1000")
    keep_large_buffers()
    explain_bus_errors()
    tokens = list(sys.argv[1:] if arguments is None else arguments)
    debug = "--debug" in tokens
    tokens = [token for token in tokens if token != "--debug"]
    code = run(tokens, debug=debug)
    leave_code(code)
    sys.exit(code)


def run(tokens: Sequence[str], *, debug: bool = False) -> int:
    """The exit code of one command; an error is printed on stderr without a traceback unless ``debug``."""
    try:
        app = build_app(next((token for token in tokens if not token.startswith("-")), ""))
        tokens = _end_with_stdin(tokens)
        return app(tokens, exit_on_error=False, print_error=False, result_action="return_value") or 0
    except VitrailError as error:
        if debug:
            raise
        if not error.reported:
            # of several ranks the one is named that has an error by itself
            rank = f"rank {os.environ['RANK']}: " if is_launched() and error.reported is None else ""
            print(f"error: {rank}{error}", file=sys.stderr)
        return error.code
    except CycloptsError as error:
        if debug:
            raise
        help_of = " ".join(["vitrail", *(error.command_chain or ()), "--help"])
        unused = error.unused_tokens if isinstance(error, UnusedCliTokensError) else None
        what = f"unexpected arguments: {' '.join(unused)}" if unused else error
        print(f"error: {what}\n  hint: {explain_flag(str(what))}{help_of}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        # the reader of stdout has gone (`| head`); what is left in the buffer goes nowhere
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Exception as error:
        if debug:
            raise
        if (explained := explain_system(error)) is not None:
            print("error: {}\n  hint: {}".format(*explained), file=sys.stderr)
            return DiskError.code
        print(
            f"error: {type(error).__name__}: {error}\n  hint: report this as a bug in vitrail; --debug shows where",
            file=sys.stderr,
        )
        return 1


def explain_flag(message: str) -> str:
    """Returns what the unknown flag of a message is called here, if it is the name of a setting in other tools; else nothing."""
    flag = re.search(r"Unknown option: \W*--([\w-]+)", message)
    if flag is None or "Did you mean" in message:
        return ""
    key, own = find_setting(flag[1].replace("-", "_"), options_of(train.train))
    return f"it is called --{own} here; " if own else f"it is --set {key}=VALUE here; " if key else ""


def _end_with_stdin(tokens: Sequence[str]) -> Sequence[str]:
    """The tokens with ``-``, paths on standard input, at the end: cyclopts takes it for an option before ``--``."""
    if "-" not in tokens or "--" in tokens:
        return tokens
    return [*(token for token in tokens if token != "-"), "--", "-"]
