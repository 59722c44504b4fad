"""`vitrail serve`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from vitrail.cli.inference_flags import ModelFlags


def serve(
    model: str | None = None,
    /,
    *,
    runs: Path | None = None,
    host: str = "127.0.0.1",
    port: int = 8000,
    name: str | None = None,
    token_file: Path | None = None,
    allow_host: list[str] | None = None,
    max_batch: int = 16,
    queue: int = 64,
    deadline: float = 10.0,
    max_body: int = 32,
    drain: float = 25.0,
    access_log: Annotated[bool, Parameter(negative="")] = False,
    loading: ModelFlags = ModelFlags(),
) -> None:
    """Answer over HTTP, with a page for people: predictions, features, explanations, and runs while they train.

    SIGTERM answers what is there and leaves; SIGHUP reads the model anew.

    Parameters
    ----------
    model
        A run directory, `latest`, a model folder, a file of weights or an exported .onnx; with --runs it may be left out.
    runs
        A folder of run directories that the page lists, with their curves.
    host
        The address to listen at. Beyond this machine a token is required.
    port
        0 takes a free one; the address is printed.
    name
        What clients call the model; by default the name of its run, folder or file.
    token_file
        A file with the token that clients must show; or the environment's VITRAIL_TOKEN.
    allow_host
        A name by which the server may be called, and no other; behind a proxy its public name. Repeat it for more.
    max_batch
        Images that the network sees at one time.
    queue
        Images that may wait; one more request is answered with 503.
    deadline
        Seconds until a request is answered with 504.
    max_body
        MiB of one request.
    drain
        Seconds from the signal to stop until the process leaves at the latest.
    access_log
        A line on stderr for every request.
    """
    from vitrail.errors import ConfigError

    if model is None and runs is None:
        raise ConfigError("there is nothing to serve", "name a model, as `vitrail serve latest`, or give --runs DIR")
    if runs is not None and not runs.is_dir():
        raise ConfigError(f"there is no folder {runs}", "give the folder that holds the run directories")
    try:
        import fastapi  # noqa: F401
        import prometheus_client  # noqa: F401
        import python_multipart  # noqa: F401
        import uvicorn  # noqa: F401
    except ImportError as missing:
        raise ConfigError(f"a server needs the package {missing.name}", "pip install 'vitrail[serve]'") from missing
    from vitrail.runtime.process import use_all_cores
    from vitrail.serving.limits import ServerLimits
    from vitrail.serving.start import start

    use_all_cores()
    limits = ServerLimits(batch=max_batch, queue=queue, deadline=deadline, body=max_body << 20, drain=drain)
    start(
        model,
        limits,
        options=loading.options(),
        classes=loading.classes,
        name=name,
        host=host,
        port=port,
        token_file=token_file,
        hosts=tuple(allow_host or ()),
        runs=runs,
        access_log=access_log,
    )
