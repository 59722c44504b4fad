"""Repositories of the Hugging Face hub: how they are named, whether their files are sound, and why one cannot be downloaded."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from vitrail.checksums import hash_file
from vitrail.errors import ConfigError, VitrailError
from vitrail.text import printable

REMOTE = "hf:"
REPOSITORY = r"(?P<name>[\w-][\w.-]*/[\w-][\w.-]*)"
REVISION = r"(?:@(?P<revision>[\w-][\w./-]*))?"
UNKNOWN = "check owner, name and revision; for private or gated repositories run: hf auth login"
GATED = "accept its terms on its page of the hub, wait until the owner admits you, and run: hf auth login"
SHA256 = re.compile(r"[0-9a-f]{64}")


def shorten(source: str) -> str:
    """Returns the last part of a path without its suffix, or of the name of a data set without its revision."""
    return Path(source.partition("@")[0] if source.startswith(REMOTE) else source).stem or "data"


def make_silent_bar() -> type[Any]:
    """Returns a class for ``tqdm_class`` that shows nothing."""
    from huggingface_hub.utils import tqdm

    class SilentBar(tqdm):
        def __init__(self, *args: Any, **given: Any) -> None:
            super().__init__(*args, **{**given, "disable": True})

    return SilentBar


def check_hashes(files: Iterable[Path], kind: type[VitrailError]) -> None:
    """Raises ``kind`` for a file that does not match its SHA-256, by which the cache of the hub names the large ones."""
    for path in files:
        blob = path.resolve()
        try:
            sound = not SHA256.fullmatch(blob.name) or hash_file(blob) == blob.name
        except OSError as error:
            raise kind(f"{path} cannot be read: {error.strerror}", "check its permissions") from error
        if not sound:
            what = f"{path} does not match the SHA-256 of the hub, {blob.name}"
            raise kind(what, f"delete {blob} and run the command again")


@contextmanager
def explain_failures(source: str, kind: type[VitrailError], instead: str, access: str = "") -> Iterator[None]:
    """Raises an error of downloading ``source`` as `ConfigError` if it does not exist or is gated, else as ``kind``.

    The remedies are ``access``, by default that of the error, and what to do ``instead`` without a network.
    """
    from huggingface_hub import constants, errors

    try:
        yield
    except VitrailError:
        raise
    except Exception as error:  # the hub's client, its HTTP library and the disk raise many types
        line = printable(str(error).strip().partition("\n")[0], 200) or type(error).__name__
        if isinstance(error, errors.RepositoryNotFoundError | errors.RevisionNotFoundError | errors.HFValidationError):
            remedy = access or (GATED if isinstance(error, errors.GatedRepoError) else UNKNOWN)
            raise ConfigError(f"{source} cannot be downloaded from the hub: {line}", remedy) from error
        remedy = f"connect and run this again; or {instead}"
        if constants.is_offline_mode():
            line, remedy = "HF_HUB_OFFLINE is set", f"unset it, {remedy}"
        raise kind(f"{source} is not in the local cache of the hub and cannot be downloaded: {line}", remedy) from error
