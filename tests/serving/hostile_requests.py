"""Requests that break every rule in turn: images, forms, JSON and the framing of HTTP itself, each a function of a chance.

Each says which statuses are a fair answer. Where the framing is broken the server may also hang up without a word.
"""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from random import Random
from typing import Any

from tests.serving.hostile_images import bomb, mutated, sound_files
from tests.serving.load import form, request
from tests.serving.odd_requests import ODD

ROUTES = ("/v1/predict", "/v1/predict?top=3", "/v1/embed", "/v1/explain?method=attention")
READ = frozenset({200, 400, 413, 415, 422})
REFUSED = READ - {200}


@dataclass(frozen=True)
class Hostile:
    """One request. Unframed is one after which nobody can say where the next would begin."""

    family: str
    content: bytes
    allowed: frozenset[int]
    framed: bool = True


def wrapped(chance: Random, image: bytes) -> bytes:
    """An image sent in one of the three ways."""
    path, way = chance.choice(ROUTES), chance.choice(("raw", "form", "json"))
    if way == "raw":
        return request("POST", path, image, Content_Type=f"image/{chance.choice(('jpeg', 'png', 'x-unknown'))}")
    if way == "form":
        body, kind = form([(part("file", "a.jpg"), image)], "border")
        return request("POST", path, body, Content_Type=kind)
    return as_json(path, {"image": b64encode(image).decode()})


def part(name: str, filename: str | None = None, more: str = "") -> bytes:
    named = "" if filename is None else f'; filename="{filename}"'
    return f'Content-Disposition: form-data; name="{name}"{named}{more}'.encode()


def as_json(path: str, value: Any) -> bytes:
    return request("POST", path, json.dumps(value).encode(), Content_Type="application/json")


def broken_image(chance: Random) -> Hostile:
    return Hostile("image", wrapped(chance, mutated(chance)), frozenset({200, 413, 422}))


def claimed_size(chance: Random) -> Hostile:
    return Hostile("bomb", wrapped(chance, bomb(chance)), frozenset({413, 422}))


def several_images(chance: Random) -> Hostile:
    """Sound and broken ones mixed, sometimes more than a request may have."""
    count = chance.choice((2, 3, 5, 40))
    images = [mutated(chance) if chance.random() < 0.5 else chance.choice(sound_files()) for _ in range(count)]
    body, kind = form([(part(f"file{place}", "a.png"), image) for place, image in enumerate(images)], "border")
    return Hostile("several", request("POST", "/v1/predict", body, Content_Type=kind), READ)


def broken_form(chance: Random) -> Hostile:
    image, name = chance.choice(sound_files()), chance.choice(list(FORMS))
    body, kind = FORMS[name](chance, image)
    return Hostile(f"form: {name}", request("POST", chance.choice(ROUTES), body, Content_Type=kind), READ)


def chopped_form(chance: Random) -> Hostile:
    """A sound form of which bytes are missing, doubled or changed, boundaries and header lines among them."""
    body, kind = form([(part("file", "a.jpg"), chance.choice(sound_files())[:300])], "border")
    for _ in range(chance.choice((1, 3))):
        start = chance.randrange(len(body))
        stop = min(len(body), start + chance.choice((1, 2, 20)))
        body = body[:start] + chance.choice((b"", body[start:stop] * 2, chance.randbytes(stop - start))) + body[stop:]
    return Hostile("form: chopped", request("POST", chance.choice(ROUTES), body, Content_Type=kind), READ)


def sole(image: bytes, boundary: str = "border", more: bytes = b"") -> tuple[bytes, str]:
    """A sound form of one file."""
    return form([(part("a", "b") + more, image)], boundary)


KIND = "multipart/form-data"
NO_UTF8 = b'Content-Disposition: form-data; name="\xff\xfe"; filename="\xc3\x28\xed\xa0\x80"'
FORMS: dict[str, Callable[[Random, bytes], tuple[bytes, str]]] = {
    "no boundary": lambda chance, image: (sole(image)[0], KIND),
    "empty boundary": lambda chance, image: (sole(image)[0], f"{KIND}; boundary="),
    "another boundary": lambda chance, image: (sole(image)[0], f"{KIND}; boundary=y"),
    "boundary of 257": lambda chance, image: sole(image, "b" * 257),
    "boundary in latin-1": lambda chance, image: sole(image, "\xe9\xff"),
    "10,000 parts": lambda chance, image: (many_parts(), f"{KIND}; boundary=border"),
    "no part": lambda chance, image: form([], "border"),
    "no end": lambda chance, image: (sole(image)[0][:-12], f"{KIND}; boundary=border"),
    "no file": lambda chance, image: form([(part("file"), b"words")], "border"),
    "text as file": lambda chance, image: form([(part("file", "a.jpg"), b"these are words" * 50)], "border"),
    "empty file": lambda chance, image: form([(part("file", "a.jpg"), b"")], "border"),
    "names that are no UTF-8": lambda chance, image: form([(NO_UTF8, image)], "border"),
    "name*": lambda chance, image: form([(part("f", "a", "; filename*=UTF-8''%ff%00%e2%82"), image)], "border"),
    "name of a path": lambda chance, image: form([(part("file", "../../../etc/passwd"), image)], "border"),
    "name with line ends": lambda chance, image: form([(part("file", "a\r\nX-Other: b\r\n\r\n"), image)], "border"),
    "name of 100,000": lambda chance, image: form([(part("file", "n" * 100_000), image)], "border"),
    "no disposition": lambda chance, image: form([(b"Content-Type: image/jpeg", image)], "border"),
    "1,000 headers": lambda chance, image: sole(image, more=b"\r\nX-More: 1" * 1000),
    "encoded": lambda chance, image: sole(b64encode(image), more=b"\r\nContent-Transfer-Encoding: base64"),
    "part in a part": lambda chance, image: sole(sole(image, "x")[0]),
}


@cache
def many_parts() -> bytes:
    return form([(part(f"file{number}", "a"), b"") for number in range(10_000)], "border")[0]


def broken_json(chance: Random) -> Hostile:
    name = chance.choice(list(JSONS))
    body = JSONS[name]()
    kind = chance.choice(("application/json", "application/json; charset=utf-16"))
    return Hostile(f"json: {name}", request("POST", chance.choice(ROUTES), body, Content_Type=kind), REFUSED)


@cache
def base64_of_sound() -> str:
    return b64encode(sound_files()[0]).decode()


JSONS: dict[str, Callable[[], bytes]] = {
    "empty": lambda: b"",
    "no JSON": lambda: b"{'image': 1}",
    "deep": lambda: b'{"image":' * 100_000,
    "deep lists": lambda: b"[" * 200_000 + b"]" * 200_000,
    "a huge number": lambda: b'{"image": ' + b"9" * 100_000 + b"}",
    "an exponent": lambda: b'{"image": 1e999999999}',
    "NaN": lambda: b'{"images": [NaN, Infinity, -Infinity]}',
    "numbers": lambda: b'{"images": [1, 2.5, -3]}',
    "null": lambda: b'{"image": null}',
    "a list": lambda: b'["image"]',
    "a word": lambda: b'"image"',
    "a wrong key": lambda: b'{"picture": "aGk="}',
    "no images": lambda: b'{"images": []}',
    "lists in lists": lambda: b'{"images": [[["aGk="]]]}',
    "an object without data": lambda: b'{"images": [{"name": "a"}]}',
    "a name that is a list": lambda: json.dumps({"images": [{"name": [1], "data": 5}]}).encode(),
    "bad base64": lambda: b'{"image": "%%%=not base64"}',
    "base64 cut": lambda: json.dumps({"image": base64_of_sound()[:-101]}).encode(),
    "base64 of nothing": lambda: b'{"image": ""}',
    "base64 beyond ASCII": lambda: '{"image": "äöü€"}'.encode(),
    "half a surrogate": lambda: b'{"images": [{"name": "\\ud800", "data": "aGk="}]}',
    "no UTF-8": lambda: b'{"image": "\xff\xfe\xc3\x28"}',
    "NUL": lambda: b'{"image": "\\u0000"}\0',
    "100,000 images": lambda: json.dumps({"images": ["aGk="] * 100_000}).encode(),
}


def odd_call(chance: Random) -> Hostile:
    """A sound request in form whose path, query, method or headers mean nothing."""
    image = chance.choice(sound_files())
    name = chance.choice(list(CALLS))
    return Hostile(f"call: {name}", CALLS[name](chance, image), frozenset({200, *range(400, 423), 431, 501, 504}))


CALLS: dict[str, Callable[[Random, bytes], bytes]] = {
    "query": lambda chance, image: request(
        "POST", f"/v1/predict?top={chance.choice(('-1', '0', 'x', '9' * 5000, '1e9', '%00', '', '5&top=6'))}", image,
        Content_Type="image/jpeg",
    ),
    "explain": lambda chance, image: request(
        "POST",
        "/v1/explain?" + chance.choice(
            ("method=x", "layer=99", "layer=-99", "head=x", "head=-1", "query=1", "query=-1,-1", "query=9,9,9",
             "query=1e3,2", "target=%ff", "as=pdf", "layer=all&head=all&query=0,0", "method=rollout&layer=1",
             "method=attention&method=occlusion")
        ),
        image, Content_Type="image/jpeg",
    ),
    "path": lambda chance, image: request(
        "GET", chance.choice(("/page/../../etc/passwd", "/page/%2e%2e/%2e%2e/etc/passwd", "//", "/%00", "/page/%ff",
                              "/v1/runs/../../x/metrics", "/v1/runs/%2e%2e/events", "/" + "a" * 6000)),
    ),
    "method": lambda chance, image: request(chance.choice(("PUT", "DELETE", "TRACE", "PATCH", "BREW")), "/v1/predict"),
    "kind": lambda chance, image: request(
        "POST", "/v1/predict", image,
        Content_Type=chance.choice(("", "x", "image/", "text/html", "application/x-www-form-urlencoded", "\xff", "a" * 5000)),
    ),
    "deadline": lambda chance, image: request(
        "POST", "/v1/predict", image, Content_Type="image/jpeg",
        X_Deadline_Ms=chance.choice(("x", "-1", "0", "nan", "inf", "9" * 400, "1e308", "\xb2")),
    ),
    "headers": lambda chance, image: request(
        "GET", "/v1/model", **{f"X-{number}": "v" * 50 for number in range(chance.choice((50, 150)))}
    ),
    "infer": lambda chance, image: as_json("/v2/models/model/infer", {"inputs": [tensor(chance)]}),
}  # fmt: skip


def tensor(chance: Random) -> dict[str, Any]:
    """An input of the KServe protocol whose fields do not go together."""
    return {
        "name": chance.choice(("image", "pixels", "images", 3)),
        "datatype": chance.choice(("BYTES", "UINT8", "FP32", 0)),
        "shape": chance.choice(([1], [1 << 62, 3], [-1], "x", [1, 3, 32, 32], [[1]])),
        "data": chance.choice(([1], "x", [[]], None, ["aGk="])),
    }


def odd_values(chance: Random) -> Hostile:
    (name,) = chance.choices(list(ODD), (60, 20, 10, 10))
    return Hostile(f"odd: {name}", ODD[name](chance), frozenset({200, *range(400, 423), 431, 504}))


def broken_framing(chance: Random) -> Hostile:
    name = chance.choice(list(FRAMES))
    content = FRAMES[name](
        chance, request("POST", "/v1/predict", chance.choice(sound_files()), Content_Type="image/png")
    )
    return Hostile(f"framing: {name}", content, frozenset({200, *range(400, 432)}), framed=False)


def with_headers(content: bytes, *lines: bytes) -> bytes:
    """A request with other header lines in the place of its Content-Length."""
    head, _, body = content.partition(b"\r\n\r\n")
    kept = [line for line in head.split(b"\r\n") if not line.startswith(b"Content-Length")]
    return b"\r\n".join([*kept, *lines, b"", body])


def in_chunks(body: bytes) -> bytes:
    return b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in (body[:100], body[100:])) + b"0\r\n\r\n"


def body_of(content: bytes) -> bytes:
    return content.partition(b"\r\n\r\n")[2]


CHUNKED = b"Transfer-Encoding: chunked"
FRAMES: dict[str, Callable[[Random, bytes], bytes]] = {
    "more promised": lambda chance, sound: with_headers(sound, b"Content-Length: 1000000") + b"\r\n",
    "less promised": lambda chance, sound: with_headers(sound, b"Content-Length: 10"),
    "negative": lambda chance, sound: with_headers(sound, b"Content-Length: -1"),
    "beyond count": lambda chance, sound: with_headers(sound, b"Content-Length: " + b"9" * 30),
    "too large": lambda chance, sound: with_headers(sound, b"Content-Length: 9999999999"),
    "no number": lambda chance, sound: with_headers(sound, b"Content-Length: 0x10"),
    "two lengths": lambda chance, sound: with_headers(sound, b"Content-Length: 5", b"Content-Length: 6"),
    "length and chunks": lambda chance, sound: with_headers(sound, b"Content-Length: 5", CHUNKED),
    "no length": lambda chance, sound: with_headers(sound),
    "chunks": lambda chance, sound: sound.partition(b"\r\n\r\n")[0].replace(b"Content-Length", b"X-Length")
    + b"\r\n" + CHUNKED + b"\r\n\r\n" + in_chunks(body_of(sound)),
    "broken chunks": lambda chance, sound: with_headers(sound, CHUNKED, b"", b"zz"),
    "a chunk without end": lambda chance, sound: with_headers(sound, CHUNKED, b"", b"ffffff"),
    "a chunk beyond count": lambda chance, sound: with_headers(sound, CHUNKED, b"", b"f" * 40),
    "another coding": lambda chance, sound: with_headers(sound, b"Transfer-Encoding: gzip, chunked"),
    "compressed": lambda chance, sound: with_headers(sound, b"Content-Encoding: br", b"Content-Length: 3"),
    "cut": lambda chance, sound: sound[: chance.randrange(1, len(sound))],
    "cut in the head": lambda chance, sound: sound[: chance.randrange(1, 60)],
    "noise": lambda chance, sound: chance.randbytes(chance.choice((1, 100, 5000))),
    "TLS": lambda chance, sound: b"\x16\x03\x01\x02\0\x01\0\x01\xfc\x03\x03" + chance.randbytes(200),
    "another version": lambda chance, sound: sound.replace(b"HTTP/1.1", chance.choice((b"HTTP/9.9", b"HTTP/2.0", b"HTPT/1"))),
    "no host": lambda chance, sound: sound.replace(b"Host: 127.0.0.1\r\n", b""),
    "folded": lambda chance, sound: with_headers(sound, b"X-A: b\r\n c", b"Content-Length: 3"),
    "NUL": lambda chance, sound: with_headers(sound, b"X-A: b\0c", b"Content-Length: 3"),
    "a name with blanks": lambda chance, sound: with_headers(sound, b"X A : b", b"Content-Length: 3"),
    "a head of 100,000": lambda chance, sound: with_headers(sound, b"X-A: " + b"a" * 100_000, b"Content-Length: 3"),
    "asks first": lambda chance, sound: sound.replace(b"\r\n\r\n", b"\r\nExpect: 100-continue\r\n\r\n", 1),
    "upgrade": lambda chance, sound: sound.replace(b"\r\n\r\n", b"\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n", 1),
    "a negative chunk": lambda chance, sound: with_headers(sound, CHUNKED, b"", b"-5"),
    "a chunk too long": lambda chance, sound: with_headers(sound, CHUNKED, b"", b"2", b"abcdef", b"0", b""),
    "a trailer of 100,000": lambda chance, sound: with_headers(sound, CHUNKED, b"", b"0", b"X-A: " + b"a" * 100_000),
    "2,000 headers": lambda chance, sound: with_headers(sound, *(b"X-%d: %s" % (at, b"a" * 40) for at in range(2000))),
    "a method of signs": lambda chance, sound: sound.replace(b"POST", b"P@ST"),
    "no method": lambda chance, sound: sound.replace(b"POST", b""),
    "an older version": lambda chance, sound: b"GET /v1/model\r\n\r\n",
    "a later protocol": lambda chance, sound: b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "two hosts": lambda chance, sound: sound.replace(b"\r\n", b"\r\nHost: example.org\r\n", 1),
    "a path of bytes": lambda chance, sound: sound.replace(b"/v1", b"/v\xff"),
    "a path of 100,000": lambda chance, sound: sound.replace(b"/v1", b"/" * 100_000),
}  # fmt: skip
# those to which the reply comes before the client has closed anything; to others there may be more to come
REFUSED_AT_ONCE = (
    "negative", "beyond count", "no number", "two lengths", "length and chunks", "broken chunks", "a chunk beyond count",
    "another coding", "TLS", "no host", "folded", "NUL", "a name with blanks", "a head of 100,000",
    "a negative chunk", "a chunk too long", "a trailer of 100,000", "2,000 headers", "a method of signs", "no method",
    "an older version", "a later protocol", "two hosts", "a path of bytes",
)  # fmt: skip

# how often each comes, out of 100
FAMILIES: dict[Callable[[Random], Hostile], int] = {
    broken_image: 20,
    claimed_size: 4,
    several_images: 3,
    broken_form: 6,
    chopped_form: 3,
    broken_json: 5,
    odd_call: 4,
    odd_values: 50,
    broken_framing: 5,
}


def hostile_requests(seed: int, count: int) -> Iterator[Hostile]:
    """The same requests for the same seed."""
    chance = Random(seed)
    for _ in range(count):
        (make,) = chance.choices(list(FAMILIES), list(FAMILIES.values()))
        yield make(chance)
