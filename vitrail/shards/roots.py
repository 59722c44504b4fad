"""Which URLs an index may name as the place of its archives: an index may come from a stranger, and only what the user named is
fetched.

The user named a URL by giving it as the data, by `vitrail data index URL`, which remembers it in the cache, or in
``VITRAIL_SHARDS_FROM``, where the index was written on another machine.
"""

from __future__ import annotations

import os
from pathlib import Path

from vitrail.checksums import sha256_of
from vitrail.errors import DataError
from vitrail.files import disk_errors, replace_file
from vitrail.shards.cache import cache_folder, is_remote

NAMED = "VITRAIL_SHARDS_FROM"  # URLs, separated by spaces; those below them count as well


def remember_root(url: str) -> None:
    """Remembers that the user of this machine named a URL. Raises `DiskError`."""
    place = _place(url)
    with disk_errors(place):
        place.parent.mkdir(parents=True, exist_ok=True)
    replace_file(place, f"{url}\n")


def check_root(root: str, index: str, place: str) -> None:
    """Raises `DataError` for the root of an index at a URL that the user did not name.

    Args:
        root: of the archives; a folder of this machine passes where the index is in one as well.
        index: where the index is, for the message.
        place: what the user named.
    """
    if not is_remote(root) and not is_remote(place):
        return
    named = [place, *os.environ.get(NAMED, "").split()]
    if ".." not in root.split("/") and any(f"{root}/".startswith(f"{each.rstrip('/')}/") for each in named):
        return
    if not _place(root).is_file():
        what = f"the index {index} is of archives at {root}, and only what you name is fetched"
        raise DataError(
            what, f"if you trust that place, set {NAMED}={root}, or index it: vitrail data index {root} NEW_FOLDER"
        )


def _place(url: str) -> Path:
    return cache_folder() / "roots" / sha256_of(url.encode())
