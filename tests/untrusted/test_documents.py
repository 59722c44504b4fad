"""JSON, YAML, XML, arrays and numbers from untrusted sources: what is read, and what is refused before it costs anything."""

from __future__ import annotations

import io
import os
import zipfile

import numpy as np
import pytest

from tests.each_row import each_row
from vitrail.untrusted.archives import ObjectArrayError, check_expansion, read_array, read_array_member
from vitrail.untrusted.files import open_regular
from vitrail.untrusted.json_documents import parse_json
from vitrail.untrusted.limits import DEPTH, DIGITS, YAML_BYTES, YAML_NODES
from vitrail.untrusted.numbers import to_real, to_whole
from vitrail.untrusted.xml_documents import parse_xml
from vitrail.untrusted.yaml_documents import YamlError, parse_yaml


def nest(depth: int) -> str:
    return "[" * depth + "]" * depth


def repeat(levels: int, wide: int, form: str) -> str:
    """YAML whose last level stands for ``wide ** levels`` values."""
    lines = ["a0: &a0 {k: 1}"]
    for level in range(1, levels + 1):
        lines.append(f"a{level}: &a{level} " + form.format(", ".join([f"*a{level - 1}"] * wide)))
    return "\n".join(lines)


@each_row(
    "content, value",
    [
        ('{"a": [1, -2.5, null, true], "b": {}}', {"a": [1, -2.5, None, True], "b": {}}),
        (b'\xef\xbb\xbf"caf\xc3\xa9"', "café"),
        ('"\\ud83d\\ude00"', "\U0001f600"),
        ("9" * DIGITS, int("9" * DIGITS)),
        ("0." + "1" * 5000, 1 / 9),
    ],
)
def test_json_is_read(content, value):
    assert parse_json(content) == value


def test_documents_are_read_up_to_the_depth():
    for parse in (parse_json, parse_yaml):
        value = parse(nest(DEPTH))
        for _ in range(DEPTH - 1):
            (value,) = value
        assert value == []
    assert parse_xml(b"<a>" * DEPTH + b"</a>" * DEPTH).tag == "a"


@each_row(
    "content, words",
    [
        ("{", "Expecting property name"),
        (b"\xff", "can't decode byte"),
        (nest(DEPTH + 1), "nested deeper than 100"),
        ('{"a": ' * 101 + "1" + "}" * 101, "nested deeper than 100"),
        ("[" * 200_000, "nested deeper than 100"),
        ("9" * (DIGITS + 1), "a whole number has 41 digits"),
        ("9" * 5000, "a whole number has 5,000 digits"),
        ('["\\ud800"]', "lone surrogate"),
        ('["\\uDFFF"]', "lone surrogate"),
    ],
)
def test_json_is_refused(content, words):
    with pytest.raises(ValueError, match=words):
        parse_json(content)


def test_a_key_that_appears_twice_is_refused_where_asked():
    assert parse_json('{"a": 1, "a": 2}') == {"a": 2}
    with pytest.raises(ValueError, match="'a' appears twice"):
        parse_json('{"b": {"a": 1, "a": 2}}', unique=True)


def test_aliases_and_merge_keys_are_read():
    value = parse_yaml("base: &base {a: 1, b: 2}\nmine: {<<: *base, b: 3}\nlist: [*base, *base]")
    assert value["mine"] == {"a": 1, "b": 3}
    assert value["list"] == [{"a": 1, "b": 2}] * 2


@pytest.mark.slow
@each_row(
    "content, words",
    [
        (repeat(12, 9, "[{}]"), "more than 50,000 values"),
        (repeat(12, 9, "{{<<: [{}]}}"), "more than 50,000 values"),
        ("[" + "a," * YAML_NODES + "]", "more than 50,000 values"),
        ("a: &a [*a]", "an alias inside of what it stands for"),
        ("a: *b", "found undefined alias"),
        (nest(DEPTH + 1), "line 1, column 101: nested deeper than 100"),
        ("[" * 50_000, "nested deeper than 100"),
        ("- " * 50_000, "nested deeper than 100"),
        ("a: " + "9" * 5000, "a number has 5,000 characters"),
        ("a: 0x" + "f" * 5000, "a number has 5,002 characters"),
        ("a: " + "1:" * 5000 + "1", "a number has 10,001 characters"),
        ("a: 2001-99-99", "month must be in 1..12"),
        ("a: 1\na: 2", "duplicate key 'a'"),
        ("? [a]\n: b", "a key that is no text"),
        ("a: !!python/object/apply:os.system [x]", "could not determine a constructor"),
        (b"a: \xff", "not UTF-8 text"),
        ("a" * (YAML_BYTES + 1), "1,048,577 characters"),
        ("a: [", "expected the node content"),
    ],
)
def test_yaml_is_refused(content, words):
    with pytest.raises(YamlError) as error:
        parse_yaml(content)
    assert words in str(error.value)


ENTITIES = '<!DOCTYPE a [<!ENTITY b "bbbb">]><a>&b;</a>'


@each_row(
    "content, words",
    [
        (ENTITIES.encode(), "declares a document type"),
        ((f'<?xml version="1.0" encoding="UTF-16"?>{ENTITIES}').encode("utf-16"), "declares a document type"),
        ((f'<?xml version="1.0" encoding="koi8-r"?>{ENTITIES}').encode("koi8-r"), "declares a document type"),
        (("<!-- " + "x" * 100_000 + " -->" + ENTITIES).encode(), "declares a document type"),
        (b'<!DOCTYPE a SYSTEM "file:///etc/hostname"><a/>', "declares a document type"),
        (b"<a>" * 101 + b"</a>" * 101, "nested deeper than 100"),
        (b"<a>" * 50_000 + b"</a>" * 50_000, "nested deeper than 100"),
        (b"<a>", "no element found"),
        (b"", "no element found"),
        (b'<?xml version="1.0" encoding="no-such-encoding"?><a/>', "unknown encoding"),
    ],
)
def test_xml_is_refused(content, words):
    with pytest.raises(ValueError, match=words):
        parse_xml(content)


@each_row(
    "value, words",
    [
        (float("inf"), "is inf"),
        (float("nan"), "is nan"),
        (10**400, "of more than 40 digits"),
        ("9" * 5000, "99999..."),
        ("1e400", "is '1e400'"),
        (1.5, "is 1.5"),
        (-1, "is -1"),
        (2**31, "from 0 to 2,147,483,647"),
        ("x", "is 'x'"),
        (None, "is None"),
        ([1], "of type list"),
    ],
)
def test_values_that_are_not_integers_are_refused(value, words):
    with pytest.raises(ValueError) as error:
        to_whole(value, "the width")
    assert words in str(error.value)
    assert len(str(error.value)) < 250


def test_numbers_are_converted_from_text():
    assert [to_whole(value, "x") for value in (7, 7.0, "7", "7.0", " 7 ")] == [7] * 5
    assert to_whole(2**60 + 1, "x", most=2**62) == 2**60 + 1
    assert to_real("-2.5e3", "x") == -2500
    for value in ("x", None, [1], 10**400):
        with pytest.raises(ValueError, match="not a number"):
            to_real(value, "x")


def array_of(shape: object, kind: str = "<f4", content: bytes = b"\0" * 64) -> bytes:
    """A file in NumPy's format whose header says anything."""
    file = io.BytesIO()
    np.lib.format.write_array_header_1_0(file, {"descr": kind, "fortran_order": False, "shape": shape})
    return file.getvalue() + content


def test_an_array_is_read_as_numpy_wrote_it_and_can_be_changed():
    for array in (
        np.arange(6.0).reshape(2, 3),
        np.asfortranarray(np.arange(6).reshape(2, 3)),
        np.zeros((0, 4)),
        np.array("ab"),
    ):
        file = io.BytesIO()
        np.save(file, array)
        size = file.tell()
        file.seek(0)
        found = read_array(file, size)
        np.testing.assert_array_equal(found, array)
        assert found.flags.writeable and found.dtype == array.dtype


@each_row(
    "content, words",
    [
        (array_of((10**13,)), "has 64 bytes"),
        (array_of((-1,)), "has 64 bytes"),
        (array_of((2,)), "has 64 bytes"),
        (array_of((2**40, 2**40)), "has 64 bytes"),
        (array_of((8,), "|O"), "holds objects"),
        (b"\x93NUMPY\x09\x00", "unknown version"),
        (b"x", "magic"),
    ],
)
def test_an_array_that_its_header_does_not_describe_is_refused(content, words):
    with pytest.raises(ValueError, match=words):
        read_array(io.BytesIO(content), len(content))


def archive_of(content: bytes, **changes: int) -> zipfile.ZipFile:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a.npy", content)
    read = zipfile.ZipFile(file)
    for name, value in changes.items():
        setattr(read.infolist()[0], name, value)
    return read


def test_a_damaged_or_encrypted_member_of_an_archive_is_refused():
    content = array_of((16,))
    for changes, words in (({"CRC": 1}, "cannot be read"), ({"flag_bits": 1}, "encrypted")):
        archive = archive_of(content, **changes)
        with pytest.raises(ValueError, match=words):
            read_array_member(archive, archive.infolist()[0])


def test_an_archive_that_expands_too_far_is_refused():
    archive = archive_of(bytes(10**6))
    check_expansion(archive, 10_000, 100)
    check_expansion(archive, 10_000, 1, spared=10**6)
    with pytest.raises(ValueError, match="has 10,000 bytes and expands to 1,000,000"):
        check_expansion(archive, 10_000, 99)


def test_a_member_of_objects_is_told_from_a_damaged_one():
    objects = archive_of(array_of((8,), "|O"))
    with pytest.raises(ObjectArrayError, match=r"the member 'a\.npy'"):
        read_array_member(objects, objects.infolist()[0])


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes with names on this system")
def test_only_regular_files_are_opened(tmp_path):
    (tmp_path / "file").write_bytes(b"abc")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "loop").symlink_to("loop")
    with open_regular(tmp_path / "file", 3) as file:
        assert file.read() == b"abc"
    for name in ("pipe", ".", os.devnull):
        with pytest.raises(ValueError, match="not a regular file"):
            open_regular(tmp_path / name)
    with pytest.raises(ValueError, match="3 bytes, over the limit of 2"):
        open_regular(tmp_path / "file", 2)
    for name in ("loop", "missing"):
        with pytest.raises(OSError):
            open_regular(tmp_path / name)
    with pytest.raises(ValueError):
        open_regular(tmp_path / "a\0b")
