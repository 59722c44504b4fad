"""Bodies of requests, sound and broken."""

from __future__ import annotations

import pytest

from vitrail.serving.refusals import Refused
from vitrail.serving.uploads import Upload, parse_uploads

FORM = "multipart/form-data; boundary=edge"


def form(*parts: bytes, end: bytes = b"--edge--\r\n") -> bytes:
    return b"".join(b"--edge\r\n" + part + b"\r\n" for part in parts) + end


def part(head: str, content: bytes) -> bytes:
    return f"Content-Disposition: form-data; {head}\r\n\r\n".encode() + content


def test_files_of_a_form_come_in_order_and_fields_are_left_out():
    body = form(
        part('name="a"; filename="1.png"', b"one"), part('name="note"', b"no"), part('name="b"; filename=""', b"")
    )
    assert parse_uploads(body, FORM, most=4) == [Upload("1.png", b"one"), Upload("", b"")]


def test_a_name_keeps_its_words_and_is_cut():
    body = form(part('name="a"; filename="gr\u00fcn <b>.png"', b"1"), part(f'name="a"; filename="{"x" * 300}"', b"2"))
    first, second = parse_uploads(body, FORM, most=4)
    assert first.name == "gr\u00fcn <b>.png" and second.name == "x" * 255


def test_json_takes_one_or_several_with_or_without_names():
    assert parse_uploads(b'{"image": "YQ=="}', "application/json", most=1) == [Upload(None, b"a")]
    body = b'{"images": [{"name": "b.png", "data": "Yg=="}, "YQ=="]}'
    assert parse_uploads(body, "application/json; charset=utf-8", most=2) == [Upload("b.png", b"b"), Upload(None, b"a")]


BROKEN = [
    (b"", "image/png", "bad_request"),
    (b"x", "text/plain", "unsupported_media_type"),
    (b"x", "", "unsupported_media_type"),
    (b"x", "multipart/form-data", "bad_request"),
    (b"x", f"multipart/form-data; boundary={'e' * 257}", "bad_request"),
    (form(part('name="a"', b"no file")), FORM, "bad_request"),
    (form(part('name="a"; filename="1"', b"one"), end=b""), FORM, "bad_request"),
    (form(part('name="a"; filename="1"', b"one")) [:-20], FORM, "bad_request"),
    (form(*[part('name="a"; filename="1"', b"one")] * 5), FORM, "too_large"),
    (form(*[part('name="a"', b"one")] * 65), FORM, "too_large"),
    (form(*[b"Content-Disposition: form-data\xff; filename=\xff\r\n\r\n"]), FORM, "bad_request"),
    (b"{", "application/json", "bad_request"),
    (b"[" * 100_000, "application/json", "bad_request"),
    (b"[]", "application/json", "bad_request"),
    (b"{}", "application/json", "bad_request"),
    (b'{"images": "YQ=="}', "application/json", "bad_request"),
    (b'{"image": 3}', "application/json", "bad_request"),
    (b'{"image": "not base64!"}', "application/json", "bad_request"),
    (b'{"image": "\\u00fc"}', "application/json", "bad_request"),
    (b'{"image": {"name": 3, "data": "YQ=="}}', "application/json", "bad_request"),
    (b"\xff\xfe", "application/json", "bad_request"),
    (b'{"image": {"name": "\\ud800", "data": "YQ=="}}', "application/json", "bad_request"),
    (b'{"image": {"name": "\xed\xa0\x80", "data": "YQ=="}}', "application/json", "bad_request"),
]  # fmt: skip


def test_a_broken_body_is_refused_and_never_half_read():
    wrong = []
    for body, kind, code in BROKEN:
        try:
            said = parse_uploads(body, kind, most=4)
        except Refused as refused:
            said = (refused.code, bool(refused.remedy))
        if said != (code, True):
            wrong.append((body[:80], kind, said))
    assert not wrong


def test_json_of_countless_values_is_not_parsed():
    with pytest.raises(Refused, match="values"):
        parse_uploads(b'{"image": [' + b"[]," * 5000 + b"[]]}", "application/json", most=16)
