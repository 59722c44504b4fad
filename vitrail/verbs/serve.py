"""`vitrail serve`: from options to a server that runs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Unpack

from vitrail.errors import ConfigError, nearest
from vitrail.verbs import options
from vitrail.verbs.verb import options_of, verb


@verb("host", "port", "runs", "token_file", "device")
def serve(
    model: Annotated[str | Path | None, f"{options.MODEL}; with --runs it may be left out."] = None,
    *,
    runs: Annotated[options.File | None, "A folder of run directories, which the page lists with their curves."] = None,
    host: Annotated[
        str, "Address to listen on. A token is required for addresses that other machines can reach."
    ] = "127.0.0.1",
    port: Annotated[int, "Port to listen on; 0 chooses a free port. The address is printed."] = 8000,
    name: Annotated[str | None, "Name of the model for clients; by default that of its run, folder or file."] = None,
    token_file: Annotated[
        options.File | None,
        "A file with the token that clients must send; by default the environment variable VITRAIL_TOKEN.",
    ] = None,
    allow_host: Annotated[
        Sequence[str] | None,
        "Accepted host name of requests, e.g. the public name behind a proxy. May be repeated.",
    ] = None,
    max_batch: Annotated[int, "Maximum batch size."] = 16,
    queue: Annotated[int, "Images that may wait; further requests are answered with 503."] = 64,
    deadline: Annotated[float, "Seconds after which a request is answered with 504."] = 10.0,
    max_body: Annotated[int, "Maximum size of a request in MiB."] = 32,
    tune: Annotated[bool, "On a CPU use the fastest way to compute, measured in 3 seconds at the start."] = True,
    processes: Annotated[
        int, "Processes that share the port, each with its own copy of the model and queue and its share of the cores."
    ] = 1,
    drain: Annotated[float, "Seconds to finish open requests after the signal to stop."] = 25.0,
    access_log: Annotated[bool, "Log a line on stderr for every request, with the address of the client."] = False,
    log_format: Annotated[
        Literal["text", "json"], "Format of the log: lines of text, or a JSON object on each line."
    ] = "text",
    **given: Unpack[options.FastCompute],
) -> None:
    """Answers over HTTP, with a page for people: predictions, features, explanations, and runs while they train.

    SIGTERM finishes the pending requests and stops; SIGHUP reloads the model. As it listens to signals it runs in the main
    thread only.

    Raises:
        ConfigError: nothing to serve, a folder of runs that does not exist, or a package that is not installed.
    """
    reading = options.parse(given, tune=tune)
    if model is None and runs is None:
        raise ConfigError("there is nothing to serve", "name a model, as `vitrail serve latest`, or give --runs DIR")
    if runs is not None and not Path(runs).is_dir():
        raise ConfigError(f"there is no folder {runs}", "give the folder that holds the run directories")
    try:
        import fastapi  # noqa: F401
        import prometheus_client  # noqa: F401
        import python_multipart  # noqa: F401
        import uvicorn  # noqa: F401
    except ImportError as missing:
        raise ConfigError(f"a server needs the package {missing.name}", "pip install 'vitrail[serve]'") from missing
    from vitrail.serving.limits import ServerLimits
    from vitrail.serving.server import start

    start(
        None if model is None else str(model),
        ServerLimits(batch=max_batch, queue=queue, deadline=deadline, body=max_body << 20, drain=drain),
        options=reading,
        name=name,
        host=host,
        port=port,
        token_file=options.to_path(token_file),
        hosts=tuple(allow_host or ()),
        runs=options.to_path(runs),
        access_log=access_log,
        log_format=log_format,
        processes=processes,
    )


def run(
    model: str | None = None,
    /,
    *,
    config: Annotated[
        options.File | None,
        "A YAML file of these options by their names, such as `port: 8080`, and `model`; options of the command override it.",
    ] = None,
    **given: Any,
) -> None:
    from vitrail.runtime.process import use_all_cores, use_one_arena

    use_one_arena()
    use_all_cores()
    written = read_options(Path(config)) if config is not None else {}
    named = written.pop("model", None)
    serve(model or named, **{**written, **given})


def read_options(file: Path) -> dict[str, Any]:
    """Returns the options of a YAML file by the names of the parameters. Raises `ConfigError` for anything else."""
    from vitrail.config.parse import read_yaml

    known = options_of(serve)
    written = {str(name).replace("-", "_"): value for name, value in read_yaml(file).items()}
    for name in written:
        if name not in known:
            raise ConfigError(f"{file} sets {name!r}, no option of vitrail serve", nearest(name, known))
    return written
