"""`vitrail serve`: from options to a server that runs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from vitrail.errors import ConfigError
from vitrail.inference.options import InferenceOptions
from vitrail.serving.limits import ServerLimits


def serve(
    model: str | Path | None,
    *,
    options: InferenceOptions,
    classes: Path | None,
    runs: str | Path | None,
    host: str,
    port: int,
    name: str | None,
    token_file: str | Path | None,
    allow_host: Sequence[str] | None,
    max_batch: int,
    queue: int,
    deadline: float,
    max_body: int,
    drain: float,
    access_log: bool,
) -> None:
    """Serves until the process is told to stop. Raises `ConfigError` for what cannot be served, and what `start` raises."""
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
    from vitrail.serving.server import start

    start(
        None if model is None else str(model),
        ServerLimits(batch=max_batch, queue=queue, deadline=deadline, body=max_body << 20, drain=drain),
        options=options,
        classes=classes,
        name=name,
        host=host,
        port=port,
        token_file=None if token_file is None else Path(token_file),
        hosts=tuple(allow_host or ()),
        runs=None if runs is None else Path(runs),
        access_log=access_log,
    )
