"""Tar archives: a strict reader, and members as vitrail writes them.

Read are regular files of ustar archives (POSIX.1-1988), with long names as GNU tar writes them and with pax paths and sizes.
Everything else is refused by name: links, devices, sparse files, compressed archives. No file is ever created from a name.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from tarfile import USTAR_FORMAT, TarInfo
from typing import NamedTuple, Protocol

from vitrail.errors import DataError, find_fault
from vitrail.untrusted.limits import EXTENDED_HEADER_BYTES as MAX_EXTRA
from vitrail.untrusted.limits import MEMBER_BYTES as MAX_BYTES

BLOCK = 512  # bytes: a header is one block, and contents are padded to whole blocks
END = bytes(2 * BLOCK)  # of an archive
MAGICS = (b"ustar\x0000", b"ustar  \x00")  # of POSIX and of GNU tar
REFUSED = {
    b"1": "a hard link",
    b"2": "a symbolic link",
    b"3": "a character device",
    b"4": "a block device",
    b"6": "a pipe",
    b"7": "a contiguous file",
    b"K": "a link with a long name",
    b"S": "a sparse file",
}
COMPRESSED = {b"\x1f\x8b": "gzip", b"BZh": "bzip2", b"\xfd7zXZ": "xz", b"\x28\xb5\x2f\xfd": "zstd", b"PK": "zip"}
AGAIN = "write it again with `tar --format=ustar`, or download it again if it should be a plain tar archive"


class Stream(Protocol):
    """A file that an archive is read from."""

    def read(self, size: int, /) -> bytes: ...


class Member(NamedTuple):
    """A file in an archive."""

    name: str
    offset: int  # of the content, from the start of the archive
    size: int  # bytes of the content, by the header


def pack_header(name: str, size: int) -> bytes:
    """The header of a regular file that belongs to nobody and was written in 1970, so that equal contents give equal archives."""
    assert len(name) <= 100 and name.isascii() and size < 8**11, (name, size)
    member = TarInfo(name)
    member.size = size
    return member.tobuf(USTAR_FORMAT)


def pad(size: int) -> bytes:
    """Returns the zeros after a content of ``size`` bytes, up to the next block."""
    return bytes(-size % BLOCK)


def read_members(file: Stream, archive: str) -> Iterator[tuple[Member, bytes]]:
    """Each regular file of an ``archive`` with its content, in order; the file is read once, from its start to its end.

    An archive that is cut off ends with the last member that begins in it, whose content may be shorter than its ``size``.
    Raises `DataError` for anything but regular files and folders, a damaged header, data behind the end, and compression.
    """
    offset, name, size = 0, "", None
    while len(header := file.read(BLOCK)) == BLOCK or (header and not offset):
        if header == bytes(BLOCK):
            return _check_end(file, archive)
        _check_header(header, archive, offset)
        offset += BLOCK
        kind, own = header[156:157], _read_size(header[124:136], archive, offset)
        if kind in b"Lxg":
            extra = _read_extra(file, own, archive, offset)
            offset += own + len(pad(own))
            if kind == b"L":
                name = _decode(extra.rstrip(b"\0"), archive, offset)
            else:
                name, size = _read_pax(extra, archive, offset, shared=kind == b"g", before=(name, size))
            continue
        member = Member(name or _read_name(header, archive, offset), offset, own if size is None else size)
        name, size = "", None
        if kind not in (b"0", b"\0", b"5"):
            what = REFUSED.get(kind, f"of type {kind!r}")
            raise DataError(f"the member {member.name!r} of {archive} is {what}, and only files are read", AGAIN)
        if member.size > MAX_BYTES:
            size_and_limit = f"{member.size:,} bytes, over the limit of {MAX_BYTES:,}"
            what = f"the member {member.name!r} of {archive} has {size_and_limit}"
            raise DataError(what, "leave it out of the archive")
        content = file.read(member.size)
        file.read(len(pad(member.size)))
        offset += member.size + len(pad(member.size))
        if kind != b"5":
            yield member, content


def _check_header(header: bytes, archive: str, offset: int) -> None:
    if not offset and (kind := next((kind for start, kind in COMPRESSED.items() if header.startswith(start)), None)):
        what = f"{archive} is compressed ({kind}), and single images cannot be read from such archives"
        raise DataError(what, "unpack it to a .tar; images are compressed already")
    digits = header[148:156].strip(b"\0 ")
    if not digits.isdigit() or int(digits, 8) != sum(header) - sum(header[148:156]) + 8 * ord(" "):
        what = "is not a tar archive" if not offset else f"is damaged: the header at byte {offset:,} fails its checksum"
        raise DataError(f"{archive} {what}", AGAIN)
    if header[257:265] not in MAGICS:
        raise DataError(f"the header at byte {offset:,} of {archive} is not of the ustar format", AGAIN)


def _check_end(file: Stream, archive: str) -> None:
    """Raises `DataError` if anything but zeros is left, as in archives that were appended to one another."""
    while rest := file.read(2**20):
        if rest.count(0) != len(rest):
            what = f"{archive} has data behind its end: it is damaged, or several archives were joined with `cat`"
            raise DataError(what, "join archives with `tar --concatenate`, or give them one by one")


def _read_size(field: bytes, archive: str, offset: int) -> int:
    if field[0] == 0x80:  # base 256, of GNU tar
        return int.from_bytes(field[1:])
    try:
        return int(field.strip(b"\0 ") or b"0", 8)
    except ValueError:
        raise DataError(f"{archive} is damaged: the header at byte {offset - BLOCK:,} has no size", AGAIN) from None


def _read_name(header: bytes, archive: str, offset: int) -> str:
    name, prefix = (header[part].partition(b"\0")[0] for part in (slice(100), slice(345, 500)))
    joined = prefix + b"/" + name if prefix and header[257:265] == MAGICS[0] else name
    return _decode(joined, archive, offset)


def _decode(name: bytes, archive: str, offset: int) -> str:
    text = name.decode("utf-8", "surrogateescape").removeprefix("./")
    if fault := find_fault(text):
        raise DataError(f"the name {text!r} at byte {offset - BLOCK:,} of {archive} {fault}", "rename the file")
    return text


def _read_extra(file: Stream, size: int, archive: str, offset: int) -> bytes:
    """A long name or a pax header."""
    extra = file.read(size) if size <= MAX_EXTRA else b""
    file.read(len(pad(size)))
    if len(extra) < size or not size:
        what = f"the extended header at byte {offset - BLOCK:,} has {size:,} bytes"
        raise DataError(f"{archive} is damaged: {what}", AGAIN)
    return extra


def _read_pax(
    extra: bytes, archive: str, offset: int, *, shared: bool, before: tuple[str, int | None]
) -> tuple[str, int | None]:
    """The path and the size in records ``LENGTH KEY=VALUE`` and a line feed; ``before``, where a record does not say.

    Other records (times, owners, comments) are of no use here. Those of sparse files change what the content means.
    """
    name, size = before
    while extra:
        digits, _, rest = extra.partition(b" ")
        length = int(digits) if digits.isdigit() and len(digits) < 8 else 0
        key, equals, value = rest[: length - len(digits) - 1].partition(b"=")
        if not length or not equals or not value.endswith(b"\n"):
            raise DataError(f"{archive} is damaged: the pax header before byte {offset:,} cannot be read", AGAIN)
        extra, value = extra[length:], value[:-1]
        if key.startswith(b"GNU.sparse") or (shared and key in (b"path", b"size")):
            raise DataError(f"{archive} has pax records {key.decode(errors='replace')!r}, which are not read", AGAIN)
        if key == b"path":
            name = _decode(value, archive, offset)
        elif key == b"size":
            if not value.isdigit() or len(value) > 18:
                raise DataError(f"{archive} is damaged: the pax header before byte {offset:,} has no size", AGAIN)
            size = int(value)
    return name, size


def write_archive(path: Path, members: Iterable[tuple[str, bytes]]) -> tuple[list[Member], int, str]:
    """Writes an archive of names, at most 100 characters of ASCII, and contents, and syncs it.

    Returns the members, and the bytes and the SHA-256 of the archive.
    """
    written, offset, digest = [], 0, hashlib.sha256()
    with open(path, "xb") as file:
        for name, content in members:
            written.append(Member(name, offset + BLOCK, len(content)))
            block = b"".join((pack_header(name, len(content)), content, pad(len(content))))
            offset += file.write(block)
            digest.update(block)
        offset += file.write(END)
        digest.update(END)
        file.flush()
        os.fsync(file.fileno())
    return written, offset, digest.hexdigest()
