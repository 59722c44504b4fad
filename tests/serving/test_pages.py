"""The page's files: only those of the folder, each as what it is, and nothing that a strict policy would refuse."""

from __future__ import annotations

import re
from importlib.resources import files

import pytest
from fastapi import FastAPI, Request
from fastapi.responses import Response
from starlette.testclient import TestClient

from vitrail.analysis import render
from vitrail.analysis.palette import ANCHORS, DARK, LIGHT
from vitrail.serving.app import load_files, pages
from vitrail.serving.refusals import Refused

FOLDER = files("vitrail.serving") / "page"
PACKAGED = sorted(file.name for file in FOLDER.iterdir())
SCRIPTS = [name for name in PACKAGED if name.endswith(".js")]
DOCUMENTS = ("index.html", "docs.html")


@pytest.fixture(scope="module")
def client() -> TestClient:
    app = FastAPI(docs_url=None)
    app.include_router(pages)

    @app.exception_handler(Refused)
    async def refused(request: Request, error: Refused) -> Response:
        return Response(error.body("", "test"), error.status)

    return TestClient(app)


def text(name: str) -> str:
    return (FOLDER / name).read_text("utf-8")


def test_every_file_of_the_folder_is_served():
    assert {*PACKAGED, "palette.css", "icon.svg"} == load_files().keys()


MEDIA = {
    "/": "text/html; charset=utf-8",
    "/docs": "text/html; charset=utf-8",
    "/page/main.js": "text/javascript; charset=utf-8",
    "/page/style.css": "text/css; charset=utf-8",
    "/page/palette.css": "text/css; charset=utf-8",
    "/page/icon.svg": "image/svg+xml",
}


def test_a_file_is_sent_as_what_it_is_and_a_browser_that_has_it_is_told_so(client):
    for path, media in MEDIA.items():
        reply = client.get(path)
        tag = reply.headers["etag"]
        told = reply.status_code, reply.headers["content-type"], reply.headers["cache-control"]
        assert told == (200, media, "no-cache"), path
        for known in (tag, f"W/{tag}", f'"other", {tag}', "*"):
            again = client.get(path, headers={"If-None-Match": known})
            assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", tag), (path, known)
        assert client.get(path, headers={"If-None-Match": '"other"'}).content == reply.content, path
        head = client.head(path)
        assert (head.status_code, head.content, head.headers["etag"]) == (200, b"", tag), path


UNLISTED = [
    "missing.js", "", "../pages.py", "..%2fpages.py", "%2e%2e/pages.py", "%2e%2e%2f%2e%2e%2f__init__.py",
    "..%5cpages.py", "%2fetc%2fpasswd", "main.js%00.css", "main.js/", "./main.js%2f..%2fmain.js", "MAIN.JS",
    "__pycache__",
]  # fmt: skip


def test_no_other_file_is_served(client):
    replies = {name: client.get(f"/page/{name}") for name in UNLISTED}
    assert {name: reply.status_code for name, reply in replies.items()} == dict.fromkeys(UNLISTED, 404)
    assert [name for name, reply in replies.items() if b"import" in reply.content] == []


def test_every_tag_is_its_own():
    tags = [file.tag for file in load_files().values()]
    assert len(set(tags)) == len(tags)


def test_a_document_has_no_script_no_style_and_no_handler_of_its_own_and_asks_for_packaged_files_alone():
    for name in DOCUMENTS:
        document = text(name)
        assert not re.search(r"<style|\sstyle=|\son\w+=|javascript:", document), name
        assert all("src=" in tag for tag in re.findall(r"<script[^>]*>", document)), name
        assert not re.search(r"<script[^>]*>[^<]", document), name
        asked = re.findall(r'(?:src|href)="page/([^"]+)"', document)
        assert asked and set(asked) <= load_files().keys(), name


def test_a_script_is_a_short_module_that_says_what_it_is_and_makes_nodes_never_markup_or_code():
    forbidden = (
        r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b|new Function|DOMParser|setAttribute\(.on"
    )
    for name in SCRIPTS:
        script = text(name)
        assert not re.search(forbidden, script), name
        assert re.match(r"/\*\*\s*\n?( \*)? ?@file ", script), name
        assert len(script.splitlines()) <= 400, name
        assert {each.removeprefix("./") for each in re.findall(r'from "([^"]+)"', script)} <= set(SCRIPTS), name


def test_no_file_speaks_of_another_host():
    for name in PACKAGED:
        addresses = set(re.findall(r"https?://[^\s\"'`)]+", text(name)))
        assert addresses <= {"http://www.w3.org/2000/svg"}, name  # the name of a language, never fetched


def test_every_id_that_a_script_asks_for_is_in_the_page():
    there = set(re.findall(r'\bid="([^"]+)"', text("index.html")))
    for name in SCRIPTS:
        asked = set(re.findall(r'byId\("([^"]+)"\)', text(name)))
        assert asked <= there | ({"routes"} if name == "docs.js" else set()), name


def test_the_page_has_the_colours_of_the_reports(client):
    palette = client.get("/page/palette.css").text
    light, dark = palette.split("@media(prefers-color-scheme:dark)")
    assert all(f"--{name}:{colour}" in light for name, colour in LIGHT.items())
    assert all(f"--{name}:{colour}" in dark for name, colour in DARK.items())
    assert f"--scale:{ANCHORS}" in light


def test_light_falls_in_the_page_as_in_explain():
    script = text("painter.js")
    for name in ("DIM", "FADED", "GLOW", "TINT", "BRIGHT", "UNSEEN"):
        assert float(re.search(rf"\b{name} = ([\d.]+)", script)[1]) == getattr(render, name)
    for name in ("AMBER", "FRAME", "LUMA"):
        written = [float(each) for each in re.search(rf"\b{name} = \[([^]]+)\]", script)[1].split(",")]
        assert written == pytest.approx(getattr(render, name).tolist())
