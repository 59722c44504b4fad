"""The web page, the page of the routes, and their files: those of the folder ``page``, cached in memory."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import NamedTuple

from fastapi import APIRouter, Request, Response

from vitrail.analysis.palette import ANCHORS, DARK, FONTS, ICON, LIGHT
from vitrail.checksums import sha256_of
from vitrail.serving.refusals import Refused

PALETTE, SIGN = "palette.css", "icon.svg"  # generated from the constants of the reports
TYPES = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}


class File(NamedTuple):
    """A file to send: its content, media type and ETag."""

    content: bytes
    media: str
    tag: str


@cache
def load_files() -> Mapping[str, File]:
    """Returns all files of the page by name."""
    folder = (files("vitrail.serving") / "page").iterdir()
    contents = {file.name: file.read_bytes() for file in folder if _ending(file.name) in TYPES}
    contents |= {PALETTE: palette().encode(), SIGN: ICON.encode()}
    return {
        name: File(content, TYPES[_ending(name)], f'"{sha256_of(content)[:16]}"') for name, content in contents.items()
    }


def _ending(name: str) -> str:
    return name.rpartition(".")[2]


def palette() -> str:
    """Returns the colours and fonts of the reports as CSS custom properties."""

    def properties(values: Mapping[str, str]) -> str:
        return ";".join(f"--{name}:{value}" for name, value in values.items())

    always = properties({**FONTS, "lead": "#23262e", "scale": ANCHORS})
    dark = f"@media(prefers-color-scheme:dark){{:root{{{properties(DARK)}}}}}"
    return f":root{{color-scheme:light dark;{always};{properties(LIGHT)}}}\n{dark}\n"


def pages_routes() -> APIRouter:
    """Returns the routes ``/``, ``/docs`` and ``/page/NAME``."""
    router = APIRouter(include_in_schema=False)

    @router.api_route("/", methods=["GET", "HEAD"])
    def page(request: Request) -> Response:
        return _send_file("index.html", request)

    @router.api_route("/docs", methods=["GET", "HEAD"])
    def docs(request: Request) -> Response:
        return _send_file("docs.html", request)

    @router.api_route("/page/{name:path}", methods=["GET", "HEAD"])
    def file(name: str, request: Request) -> Response:
        if name not in load_files():
            raise Refused("not_found", "there is no such file", "open / for the page")
        return _send_file(name, request)

    return router


def _send_file(name: str, request: Request) -> Response:
    """Returns the file, or 304 if the browser has the current version."""
    content, media, tag = load_files()[name]
    headers = {"ETag": tag, "Cache-Control": "no-cache"}
    known = [name.strip().removeprefix("W/") for name in request.headers.get("if-none-match", "").split(",")]
    if tag in known or known == ["*"]:
        return Response(status_code=304, headers=headers)
    return Response(content, media_type=media, headers=headers)
