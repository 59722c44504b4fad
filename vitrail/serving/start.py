"""Starting a server with the options of the command line."""

from __future__ import annotations

import functools
import logging
import os
import re
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from vitrail.errors import ConfigError
from vitrail.inference.options import InferenceOptions
from vitrail.runtime.libtiff import redirect_libtiff
from vitrail.runtime.process import cores
from vitrail.serving.limits import ServerLimits
from vitrail.serving.loaded_model import load_model
from vitrail.serving.server import bind, check_reach, run
from vitrail.serving.service import Service

TOKEN = re.compile(r"[!-~]{16,256}")  # printable ASCII without spaces
log = logging.getLogger("vitrail.serving")


def start(
    model: str | None,
    limits: ServerLimits,
    *,
    options: InferenceOptions,
    classes: Path | None,
    name: str | None,
    host: str,
    port: int,
    token_file: Path | None,
    hosts: tuple[str, ...],
    runs: Path | None,
    access_log: bool,
) -> None:
    """Serves until a signal stops it. Raises `ConfigError` for an invalid address, and the errors of `vitrail.load`."""
    _configure_logging(access_log)
    token = read_token(token_file)
    check_reach(host, token)
    with bind(host, port) as bound, _exit_on_sigterm(), redirect_libtiff(log.warning):
        load = None
        if model is not None:
            options = replace(options, batch=limits.batch)
            load = functools.partial(load_model, model, name=name, classes=classes, options=options, say=log.info)
        service = Service(load, limits, threads=cores())
        if model is not None:
            log.info("serving %s %s", service.served.name, service.served.version)
        run(service, bound, token=token, hosts=hosts, runs=runs)


@contextmanager
def _exit_on_sigterm() -> Iterator[None]:
    """Exits on SIGTERM while the model loads: the first process of a container has no default handler."""
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def read_token(file: Path | None) -> str | None:
    """Returns the token from a file or the environment, or None. Raises `ConfigError` for an invalid or short token."""
    source = str(file) if file is not None else "VITRAIL_TOKEN"
    try:
        token = file.read_text().strip() if file is not None else os.environ.get("VITRAIL_TOKEN")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read the token of {file}: {error}", "give a file with one line of text") from error
    if token is None:
        return None
    if not TOKEN.fullmatch(token):
        what = f"the token of {source} has {len(token)} characters, or contains spaces"
        remedy = (
            "use 16 to 256 printable characters, such as: python -c 'import secrets; print(secrets.token_urlsafe(32))'"
        )
        raise ConfigError(what, remedy)
    return token


def _configure_logging(access_log: bool) -> None:
    logging.basicConfig(format="%(asctime)s %(levelname)-7s %(message)s", level=logging.WARNING)
    log.setLevel(logging.INFO)
    logging.getLogger("vitrail.access").setLevel(logging.INFO if access_log else logging.WARNING)
    logging.getLogger("uvicorn.error").setLevel(logging.ERROR)  # invalid requests are counted, not logged
    logging.getLogger("PIL").setLevel(logging.CRITICAL)  # what is wrong with an image is in the reply
