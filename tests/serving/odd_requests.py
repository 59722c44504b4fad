"""Requests that are valid but for odd values: documents of JSON with replaced places, parameters, names and paths."""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Callable
from random import Random
from typing import Any
from urllib.parse import quote, urlencode

from tests.serving.hostile_images import sound_files
from tests.serving.load import form, request

STRINGS = (
    "", " ", "\0", "\uffff", "\u202e", "\U0010ffff", "a\r\nX: b", "../../etc/passwd", "%00", "\\u0000",
    "null", "NaN", "true", "-1", "0x10", "1e400", "\u0661", "e\u0301", "\ufeff", "<b>", "'; --", "{{7*7}}", "n" * 5000,
    "\U0001f600" * 300,
)  # fmt: skip
SURROGATES = ("\ud800", "\udfff\ud800", "a\udc80")
NUMBERS = (
    0, -0.0, -1, 1, 0.1, 255, 256, 2**31, -(2**31) - 1, 2**53 + 1, 2**63, 2**64, 10**30, 10**400, 1e20, -1e38, 3.4e38, 3.5e38,
    1e308, 5e-324, float("nan"), float("inf"), float("-inf"),
)  # fmt: skip
OTHERS: tuple[Any, ...] = (None, True, False, [], {}, [[]], [None], {"": None}, [[[[[1]]]]], {"a": {"b": {"c": []}}})
OPTIONS: dict[str, tuple[Any, ...]] = {
    "top": (1, 5, 1000), "threshold": (0, 0.5, 1), "side": (1, 64), "as": ("json", "png"),
    "explain": ("attention", "rollout", "gradient"), "method": ("attention", "rollout", "gradient", "occlusion", "similarity"),
    "layer": (-1, 0, "all"), "head": ("mean", "all", 0), "query": ("0,0", "1,2", ""), "target": ("0", "cat"),
}  # fmt: skip
ROUTES = ("/v1/predict", "/v1/embed", "/v1/explain")
SIDE, CHANNELS = 32, 3  # of the model of `questions.model`
MODELS = ("model", "model/versions/x", "nothing", "\ud800", "a/b")


def odd_value(chance: Random) -> Any:
    return chance.choice(chance.choice((STRINGS, SURROGATES, NUMBERS, OTHERS)))


def odd_text(chance: Random) -> str:
    return chance.choice(chance.choice((STRINGS, SURROGATES)))


def replaced(chance: Random, value: Any) -> Any:
    """A document in which one leaf or branch is another, is missing, or comes twice."""
    if not isinstance(value, dict | list) or not value or chance.random() < 0.2:
        return odd_value(chance)
    copy = value.copy()
    place = chance.choice(list(copy) if isinstance(copy, dict) else range(len(copy)))
    way = chance.random()
    if way < 0.1:
        del copy[place]
    elif way < 0.2 and isinstance(copy, dict):
        copy[odd_text(chance)] = copy[place]
    elif way < 0.2:
        copy.append(copy[place])
    else:
        copy[place] = replaced(chance, copy[place])
    return copy


def odd_document(chance: Random) -> bytes:
    """A request of JSON, of the own API or of the Open Inference Protocol, with at most three odd places."""
    kind = chance.choice(list(DOCUMENTS))
    document = DOCUMENTS[kind](chance)
    for _ in range(chance.randrange(4)):
        document = replaced(chance, document)
    infers = f"/v2/models/{quote(chance.choice(('model', *MODELS)), errors='surrogatepass')}/infer"
    path = infers if "inputs" in kind else chance.choice(ROUTES)
    # a lone surrogate is an escape, or bytes that are no UTF-8
    body = json.dumps(document, ensure_ascii=chance.random() < 0.7).encode(errors="surrogatepass")
    return request("POST", path, body, Content_Type="application/json")


def image_text(chance: Random) -> str:
    return b64encode(chance.choice(sound_files())).decode()


def tensor(chance: Random, name: str, kind: str, shape: list[int], data: list[Any]) -> dict[str, Any]:
    more = {"parameters": {"a": 1}} if chance.random() < 0.2 else {}
    return {
        "id": odd_text(chance),
        "inputs": [{"name": name, "shape": shape, "datatype": kind, "data": data, **more}],
        "outputs": None,
    }


def numbers(chance: Random) -> list[Any]:
    """Values of an image, most of them the same and some of them odd."""
    values: list[Any] = [chance.choice((0, 1, 0.5, 255))] * (CHANNELS * SIDE * SIDE)
    for _ in range(chance.choice((0, 0, 1, 100))):
        values[chance.randrange(len(values))] = chance.choice(NUMBERS)
    return values if chance.random() < 0.8 else [chance.choice(NUMBERS)] * len(values)


DOCUMENTS: dict[str, Callable[[Random], Any]] = {
    "image": lambda chance: {"image": image_text(chance)},
    "a named image": lambda chance: {"image": {"name": odd_text(chance), "data": image_text(chance)}},
    "images": lambda chance: {"images": [image_text(chance), {"name": "b.png", "data": image_text(chance)}]},
    "inputs of files": lambda chance: tensor(chance, "image", "BYTES", [1], [image_text(chance)]),
    "inputs of pixels": lambda chance: tensor(chance, "pixels", "UINT8", [1, SIDE, SIDE, CHANNELS], numbers(chance)),
    "inputs of floats": lambda chance: tensor(chance, "images", "FP32", [1, CHANNELS, SIDE, SIDE], numbers(chance)),
}


def odd_parameters(chance: Random) -> bytes:
    """A sound image for any route, whose parameters are of it or not, sound or odd, and sometimes twice."""
    pairs = [(name, chance.choice(OPTIONS[name])) for name in chance.sample(list(OPTIONS), chance.randrange(4))]
    pairs = [(name, odd_value(chance) if chance.random() < 0.4 else value) for name, value in pairs]
    if pairs and chance.random() < 0.1:
        pairs.append((pairs[0][0], odd_value(chance)))
    query = urlencode([(name, str(value)) for name, value in pairs], errors="surrogatepass")[:8000]
    return request("POST", f"{chance.choice(ROUTES)}?{query}", chance.choice(sound_files()), Content_Type="image/png")


def odd_names(chance: Random) -> bytes:
    """A sound form whose names, file names and kinds of content are odd."""
    name, filename, kind = (odd_text(chance).encode(errors="surrogatepass") for _ in range(3))
    head = b'Content-Disposition: form-data; name="%s"; filename="%s"\r\nContent-Type: %s' % (name, filename, kind)
    body, content_type = form([(head, chance.choice(sound_files()))], "border")
    return request("POST", chance.choice(ROUTES), body, Content_Type=content_type)


def odd_path(chance: Random) -> bytes:
    """A request without an image to a route with a name in it, or with headers whose values are odd."""
    name = quote(odd_text(chance), safe=chance.choice(("", "/")), errors="surrogatepass")
    path = chance.choice(
        ("/v2/models/{}", "/v2/models/{}/ready", "/v2/models/model/versions/{}", "/v1/runs/{}/metrics", "/{}")
    )
    header = odd_text(chance).encode(errors="replace").decode("latin-1").translate(dict.fromkeys(range(32)))
    more = {chance.choice(("X-Request-ID", "X-Deadline-Ms", "Accept", "Origin", "Last-Event-ID")): header.strip()}
    return request(chance.choice(("GET", "POST", "OPTIONS")), path.format(name), **more)


ODD: dict[str, Callable[[Random], bytes]] = {
    "document": odd_document,
    "parameters": odd_parameters,
    "names": odd_names,
    "path": odd_path,
}
