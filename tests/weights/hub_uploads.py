"""The routes of the Hugging Face hub that take uploads, on this machine: repositories, large files and commits."""

from __future__ import annotations

import json
import threading
from base64 import b64decode
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import constants

from tests.weights.hub_mirror import COMMIT

TOKEN = "hf_TokenThatMayWriteToMeAlone"


@dataclass
class Uploads:
    """What the mirror was sent: headers of requests by path, messages of commits, and the names of private repositories."""

    root: Path
    address: str = ""
    paths: list[str] = field(default_factory=list)
    messages: list[str] = field(default_factory=list)
    private: set[str] = field(default_factory=set)
    large: dict[str, bytes] = field(default_factory=dict)
    full: bool = False  # refuses commits


@contextmanager
def serve_uploads(root: Path) -> Iterator[Uploads]:
    """Serves uploads into the folder ``root``; the token `TOKEN` may write to the repositories of the user ``me``."""
    uploads = Uploads(root)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:  # /api/models/OWNER/NAME
            uploads.paths.append(self.path)
            name = "/".join(self.path.partition("?")[0].split("/")[3:5])
            if not (root / name).is_dir():
                return self._reply(404, {"error": "Repository not found"}, **{"X-Error-Code": "RepoNotFound"})
            files = [{"rfilename": path.name} for path in sorted((root / name).iterdir())]
            self._reply(200, {"id": name, "sha": COMMIT, "private": name in uploads.private, "siblings": files})

        def do_PUT(self) -> None:  # /large/SHA256
            uploads.large[self.path.rpartition("/")[2]] = self._read()
            self._reply(200, {})

        def do_POST(self) -> None:
            uploads.paths.append(self.path)
            body, allowed = self._read(), self.headers.get("Authorization") == f"Bearer {TOKEN}"
            if self.path.endswith("/api/validate-yaml"):
                return self._reply(200, {"warnings": [], "errors": []})
            if self.path == "/api/repos/create":
                return self._create(json.loads(body), allowed=allowed)
            name = "/".join(
                self.path.removeprefix("/api/models").removesuffix(".git/info/lfs/objects/batch").split("/")[1:3]
            )
            if not allowed or not name.startswith("me/"):
                return self._reply(403, {"error": "You do not have write access"})
            if self.path.endswith("/preupload/main"):
                files = [each["path"] for each in json.loads(body)["files"]]
                modes = {file: "lfs" if file.endswith(".safetensors") else "regular" for file in files}
                listed = [{"path": file, "uploadMode": mode, "shouldIgnore": False} for file, mode in modes.items()]
                return self._reply(200, {"files": listed})
            if self.path.endswith("/objects/batch"):
                objects = [
                    {**each, "actions": {"upload": {"href": f"{uploads.address}/large/{each['oid']}"}}}
                    for each in json.loads(body)["objects"]
                ]
                return self._reply(200, {"transfer": "basic", "objects": objects})
            self._commit(name, [json.loads(line) for line in body.splitlines()])

        def _create(self, asked: dict[str, Any], *, allowed: bool) -> None:
            name = f"{asked['organization']}/{asked['name']}"
            if not allowed or asked["organization"] != "me":
                return self._reply(403, {"error": "You don't have the rights to create a model"})
            (root / name).mkdir(parents=True)
            if asked.get("visibility") == "private":
                uploads.private.add(name)
            self._reply(200, {"url": f"{uploads.address}/{name}"})

        def _commit(self, name: str, lines: list[dict[str, Any]]) -> None:
            if uploads.full:
                return self._reply(403, {"error": "Storage limit reached"})
            for line in lines:
                value = line["value"]
                if line["key"] == "header":
                    uploads.messages.append(value["summary"])
                else:
                    content = uploads.large[value["oid"]] if line["key"] == "lfsFile" else b64decode(value["content"])
                    (root / name / value["path"]).write_bytes(content)
            place = f"{uploads.address}/{name}/commit/{COMMIT}"
            self._reply(200, {"commitUrl": place, "commitOid": COMMIT})

        def _read(self) -> bytes:
            if self.headers.get("Transfer-Encoding") != "chunked":
                return self.rfile.read(int(self.headers.get("Content-Length", 0)))
            body = b""
            while size := int(self.rfile.readline(), 16):
                body += self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
            return body

        def _reply(self, status: int, document: dict[str, Any], **headers: str) -> None:
            content = json.dumps(document).encode()
            self.send_response(status)
            told = {"Content-Type": "application/json", "Content-Length": str(len(content)), **headers}
            for key, value in told.items():
                self.send_header(key, value)
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *words: object) -> None:
            """Nothing is printed."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    uploads.address = f"http://127.0.0.1:{server.server_port}"
    try:
        yield uploads
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def use_hub(address: str, cache: Path, patch: pytest.MonkeyPatch) -> None:
    """Makes the hub's client in this process use a mirror, with this cache, and the token of the mirror."""
    patch.setattr(constants, "ENDPOINT", address)
    patch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", f"{address}/{{repo_id}}/resolve/{{revision}}/{{filename}}")
    patch.setattr(constants, "HF_HUB_CACHE", str(cache))
    patch.setattr(constants, "HF_HUB_OFFLINE", False)
    patch.setattr(constants, "HF_HUB_DISABLE_XET", True)
    patch.setenv("HF_TOKEN", TOKEN)
