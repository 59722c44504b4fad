"""The cache of a machine for shards that are stored elsewhere (``s3://``, ``gs://``, ``https://``), read through fsspec.

Shards are fetched whole and kept under their SHA-256, which is verified before another process can see them. The processes of
a machine share the cache, and each shard is fetched by one of them. Where there is no room, the shards that were not used for
the longest time are removed.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import time
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from vitrail.errors import ConfigError, DataError, VitrailError
from vitrail.files import disk_errors

try:
    import fcntl
except ImportError:  # Windows has none
    fcntl = None  # type: ignore[assignment]

PART_BYTES = 2**23  # of a request
STALLED = 60.0  # seconds after which a request for a part is given up
TRIES, BACK_OFF = 3, 1.0  # seconds before the second try; twice as many before the third
FAILED_FOR = 300.0  # seconds in which a shard that could not be fetched is not tried again
KEPT_FREE = 0.05  # of the disk, where no limit is given
LOCKS = 64


class Unavailable(ValueError):
    """A shard could not be fetched."""


_failed: dict[str, tuple[float, str]] = {}  # by SHA-256: until when, and why


def cache_folder() -> Path:
    """The folder of the cache: ``VITRAIL_SHARDS``, else ``~/.cache/vitrail/shards``."""
    given = os.environ.get("VITRAIL_SHARDS")
    return Path(given).expanduser() if given else Path.home() / ".cache" / "vitrail" / "shards"


def cache_limit() -> int | None:
    """Bytes that the shards in the cache may have: ``VITRAIL_SHARDS_GB``, else None. Raises `ConfigError`."""
    given = os.environ.get("VITRAIL_SHARDS_GB")
    if not given:
        return None
    with suppress(ValueError, OverflowError):
        if float(given) > 0:
            return int(float(given) * 1e9)
    raise ConfigError(f"VITRAIL_SHARDS_GB is {given!r}", "give a size in gigabytes, such as 200")


def is_remote(place: str) -> bool:
    """Whether a place is a URL."""
    return "://" in place


def is_cached(sha256: str) -> bool:
    """Whether a shard is in the cache; it counts as used now."""
    return _is_there(_place(sha256))


def fetch_shard(url: str, sha256: str, size: int) -> str:
    """The path of a shard in the cache, after it was fetched if it is not there.

    Raises `Unavailable` if it could not be fetched three times, or has another SHA-256, and `DiskError`.
    """
    place = _place(sha256)
    if not _is_there(place):
        fetch_to(place, url, sha256, size)
    return str(place)


def fetch_to(place: Path, url: str, sha256: str, size: int) -> None:
    """Fetches a file to a place, unless another process does it first. Raises as `fetch_shard` does."""
    with disk_errors(place, needed=size):
        place.parent.mkdir(parents=True, exist_ok=True)
        with _lock(place):
            if not _is_there(place):
                _make_room(place.parent, size)
                _fetch(url, place, sha256, size)


def fetch_file(url: str) -> bytes | None:
    """The content of a small file; None where there is none. Raises `DataError`, also without the package for such URLs."""
    for attempt in range(TRIES):
        with _store_errors(url):
            try:
                system, path = _open_system(url)
                return _read(system, path)
            except FileNotFoundError:
                return None
            except Exception:  # every store has types of its own
                if attempt == TRIES - 1:
                    raise
        time.sleep(BACK_OFF * 2**attempt)
    raise AssertionError


def _place(sha256: str) -> Path:
    return cache_folder() / f"{sha256}.tar"


def list_archives(place: str) -> dict[str, int]:
    """The names of the files ``*.tar`` in a folder or at a URL, sorted, and their bytes. Raises `DataError`."""
    with _store_errors(place):
        system, path = _open_system(place)
        try:
            found = {file["name"].rpartition("/")[2]: file["size"] for file in system.ls(path, detail=True)}
        except FileNotFoundError:
            return {}
        return {name: int(found[name]) for name in sorted(found) if name.endswith(".tar")}


@contextmanager
def open_archive(place: str) -> Iterator[Any]:
    """A file here or at a URL, to be read once from its start to its end. Raises `DataError` where that fails."""
    with _store_errors(place):
        system, path = _open_system(place)
        with system.open(path, "rb", block_size=PART_BYTES) as file:
            yield file


@contextmanager
def _store_errors(place: str) -> Iterator[None]:
    """Turns the errors of a disk or of a store, which has types of its own, into `DataError`."""
    try:
        yield
    except VitrailError:
        raise
    except Exception as error:
        what = f"{place} cannot be read: {_describe(error)}"
        raise DataError(what, "check the address, the network and the permissions") from error


def _is_there(place: Path) -> bool:
    with suppress(FileNotFoundError):
        os.utime(place)
        return True
    return False


@contextmanager
def _lock(place: Path) -> Iterator[None]:
    """One process at a time; the system releases the lock of a process that ended."""
    with open(place.parent / f".lock-{zlib.crc32(place.name.encode()) % LOCKS:02d}", "w") as file:
        if fcntl is not None:
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _make_room(folder: Path, size: int) -> None:
    """Removes the shards that were not used for the longest time, until one of ``size`` bytes has room."""
    found = []
    for path in folder.glob("*.tar"):
        with suppress(FileNotFoundError):  # another process removed it
            status = path.stat()
            found.append((status.st_mtime, status.st_size, path))
    limit, used = cache_limit(), sum(size for _, size, _ in found)
    if limit is None:
        disk = shutil.disk_usage(folder)
        limit = used + int(disk.free - KEPT_FREE * disk.total)
    for _, freed, path in sorted(found):
        if used + size <= limit:
            return
        path.unlink(missing_ok=True)
        used -= freed


def _fetch(url: str, place: Path, sha256: str, size: int) -> None:
    part = place.with_suffix(".part")
    until, reason = _failed.get(sha256, (0.0, ""))
    if time.monotonic() < until:
        raise Unavailable(reason)
    for attempt in range(TRIES):
        if attempt:
            time.sleep(BACK_OFF * 2 ** (attempt - 1))
        try:
            found = _download(url, part, size)
        except Unavailable as error:
            reason = str(error)
            continue
        if found == sha256:
            return os.replace(part, place)
        reason = f"its SHA-256 is {found}, not {sha256}"
    part.unlink(missing_ok=True)
    reason = f"{url} could not be fetched in {TRIES} tries: {reason}"
    _failed[sha256] = time.monotonic() + FAILED_FOR, reason
    raise Unavailable(reason)


def _download(url: str, part: Path, size: int) -> str:
    """The SHA-256 of what was written to ``part``."""
    system, path = _open_system(url)
    digest = hashlib.sha256()
    with open(part, "wb") as file:
        for start in range(0, size, PART_BYTES):
            end = min(start + PART_BYTES, size)
            try:
                content = _read(system, path, start=start, end=end)
            except Exception as error:  # every store has types of its own
                raise Unavailable(_describe(error)) from error
            if len(content) != end - start:
                raise Unavailable(f"of bytes {start:,} to {end:,} only {len(content):,} came")
            digest.update(content)
            file.write(content)
        file.flush()
        os.fsync(file.fileno())
    return digest.hexdigest()


def _open_system(url: str) -> tuple[Any, str]:
    """The file system of fsspec for a URL, and the path there. Raises `DataError` if its package is missing."""
    from fsspec.core import filesystem, url_to_fs

    try:
        return url_to_fs(url) if is_remote(url) else (filesystem("file"), url)
    except (ImportError, ValueError) as error:
        scheme = url.partition("://")[0]
        remedy = "pip install 'vitrail[remote]' for s3://, gcsfs for gs://, aiohttp for https://"
        raise DataError(f"{scheme}:// cannot be read: {error}", remedy) from error


def _read(system: Any, path: str, **part: int) -> Any:
    """A file of a file system, or a ``part`` of it; one that answers over a network has `STALLED` seconds."""
    if not system.async_impl:
        return system.cat_file(path, **part)
    from fsspec.asyn import sync

    return sync(system.loop, system._cat_file, path, timeout=STALLED, **part)


def _describe(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else f"{type(error).__name__} (no answer in {STALLED:g} s)"
