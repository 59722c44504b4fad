"""Tar archives: tarfile of the standard library reads ours and writes what ours reads; what is not a plain file is refused."""

from __future__ import annotations

import gzip
import io
import tarfile

import pytest

from vitrail.errors import DataError
from vitrail.shards.tar import BLOCK, pack_header, pad, read_members, write_archive

LONG = "/".join(["a rather long name of a folder"] * 9) + "/äö.jpg"  # 277 characters: more than ustar can hold
CONTENTS = {"a.jpg": b"x" * 700, "folder/b.cls": b"", "folder/c.png": b"y" * BLOCK}


def written(form, contents, **changes):
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w", format=form) as archive:
        for name, content in contents.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            for field, value in changes.items():
                setattr(info, field, value)
            archive.addfile(info, io.BytesIO(content))
    return file.getvalue()


def read(content):
    return list(read_members(io.BytesIO(content), "x.tar"))


@pytest.mark.parametrize("form", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_members_are_those_that_tarfile_wrote(form):
    contents = CONTENTS if form == tarfile.USTAR_FORMAT else {LONG: b"z" * 513, **CONTENTS, "ü.jpg": b"u"}
    whole = written(form, contents)
    members = read(whole)
    assert {member.name: content for member, content in members} == contents
    for member, content in members:
        assert whole[member.offset : member.offset + member.size] == content


def test_a_name_in_two_fields_of_a_header_and_folders_are_read():
    name = "f" * 90 + "/" + "n" * 90 + ".jpg"
    assert [member.name for member, _ in read(written(tarfile.USTAR_FORMAT, {name: b"1"}))] == [name]
    assert not read(written(tarfile.USTAR_FORMAT, {"folder": b""}, type=tarfile.DIRTYPE))


def test_tarfile_reads_what_is_written_and_equal_contents_give_equal_bytes(tmp_path):
    members, size, digest = write_archive(tmp_path / "a.tar", CONTENTS.items())
    assert (size, digest) == write_archive(tmp_path / "b.tar", CONTENTS.items())[1:]
    whole = (tmp_path / "a.tar").read_bytes()
    assert len(whole) == size and whole == (tmp_path / "b.tar").read_bytes()
    with tarfile.open(tmp_path / "a.tar") as archive:
        assert {info.name: archive.extractfile(info).read() for info in archive} == CONTENTS
        assert {(info.mtime, info.uid, info.gid, info.uname, info.mode) for info in archive} == {(0, 0, 0, "", 0o644)}
        assert [info.offset_data for info in archive] == [member.offset for member in members]


KINDS = {
    "a hard link": tarfile.LNKTYPE,
    "a symbolic link": tarfile.SYMTYPE,
    "a character device": tarfile.CHRTYPE,
    "a pipe": tarfile.FIFOTYPE,
}


@pytest.mark.parametrize("kind", KINDS)
def test_members_that_are_not_files_are_refused_by_name(kind):
    with pytest.raises(DataError, match=f"the member 'a.jpg' of x.tar is {kind}"):
        read(written(tarfile.USTAR_FORMAT, {"a.jpg": b""}, type=KINDS[kind]))


def damaged(place, byte):
    whole = bytearray(written(tarfile.USTAR_FORMAT, CONTENTS))
    whole[place] ^= byte
    return bytes(whole)


SPARSE = {"pax_headers": {"GNU.sparse.size": "9"}}
BAD = {
    "the header at byte 0 fails its checksum|is not a tar archive": damaged(3, 1),
    "the header at byte 1,536 fails its checksum": damaged(1536 + 130, 1),
    "compressed \\(gzip\\)": gzip.compress(written(tarfile.USTAR_FORMAT, CONTENTS)),
    "is not a tar archive": b"path,label\n",
    "has data behind its end": written(tarfile.USTAR_FORMAT, CONTENTS) + written(tarfile.USTAR_FORMAT, CONTENTS),
    "pax records 'GNU.sparse.size'": written(tarfile.PAX_FORMAT, {"a.jpg": b"1"}, **SPARSE),
    "has control characters": written(tarfile.USTAR_FORMAT, {"a\n.jpg": b"1"}),
    "over the limit": pack_header("a.jpg", 2**30),
}


@pytest.mark.parametrize("words", BAD)
def test_a_damaged_or_foreign_archive_is_refused_by_name(words):
    with pytest.raises(DataError, match=words) as refused:
        read(BAD[words])
    assert "x.tar" in str(refused.value)


def test_an_archive_that_is_cut_off_ends_with_what_is_there():
    whole = written(tarfile.USTAR_FORMAT, CONTENTS)
    second = BLOCK + 1024  # header and content of the first
    for length, contents in ((BLOCK + 100, [b"x" * 100]), (second, [b"x" * 700]), (second + 10, [b"x" * 700])):
        assert [content for _, content in read(whole[:length])] == contents


def test_sizes_of_gnu_in_base_256_are_read():
    header = bytearray(pack_header("a.jpg", 5))
    header[124:136] = b"\x80" + (5).to_bytes(11)
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    assert [content for _, content in read(bytes(header) + b"12345" + pad(5))] == [b"12345"]
