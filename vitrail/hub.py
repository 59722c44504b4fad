"""Repositories of the Hugging Face hub: how they are named, whether their files are sound, and why one cannot be downloaded."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from vitrail.checksums import hash_file
from vitrail.errors import ConfigError, VitrailError

REMOTE = "hf:"
REPOSITORY = r"(?P<name>[\w-][\w.-]*/[\w-][\w.-]*)"
REVISION = r"(?:@(?P<revision>[\w-][\w./-]*))?"
SHA256 = re.compile(r"[0-9a-f]{64}")


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


def explain_failure(source: str, error: Exception, kind: type[VitrailError], instead: str) -> VitrailError:
    """Returns the error for a ``source`` that could not be downloaded: `ConfigError` if it does not exist or is gated, else
    ``kind``, with what to do ``instead`` without a network.
    """
    from huggingface_hub.constants import is_offline_mode
    from huggingface_hub.errors import (
        GatedRepoError,
        HFValidationError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    line = "".join(filter(str.isprintable, str(error).strip().partition("\n")[0]))[:200] or type(error).__name__
    if isinstance(error, RepositoryNotFoundError | RevisionNotFoundError | HFValidationError):
        remedy = "check owner, name and revision; for private or gated repositories run: hf auth login"
        if isinstance(error, GatedRepoError):
            remedy = "accept its terms on its page of the hub, wait until the owner admits you, and run: hf auth login"
        return ConfigError(f"{source} cannot be downloaded from the hub: {line}", remedy)
    offline = is_offline_mode()
    line = "HF_HUB_OFFLINE is set" if offline else line
    remedy = f"connect and run this again{' with HF_HUB_OFFLINE unset' if offline else ''}; or {instead}"
    return kind(f"{source} is not in the local cache of the hub and cannot be downloaded: {line}", remedy)
