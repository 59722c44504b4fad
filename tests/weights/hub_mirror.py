"""A mirror of the Hugging Face hub on this machine: the few routes that downloading a repository takes."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@contextmanager
def serve_mirror(root: Path) -> Iterator[tuple[str, list[str]]]:
    """Serves the folders ``root/OWNER/NAME`` as repositories; gives the address, and the paths that are asked for."""
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._answer(body=True)

        def do_HEAD(self) -> None:
            self._answer(body=False)

        def _answer(self, *, body: bool) -> None:
            asked.append(self.path)
            parts = self.path.partition("?")[0].strip("/").split("/")
            if parts[:2] == ["api", "models"]:
                return self._describe(root.joinpath(*parts[2:4]), tree="tree" in parts[4:], body=body)
            file = root.joinpath(*parts[:2], *parts[4:])  # OWNER/NAME/resolve/REVISION/FILE
            if not file.is_file():
                return self._send(404, b"", {"X-Error-Code": "EntryNotFound"}, body=body)
            content = file.read_bytes()
            digest = hashlib.sha256(content).hexdigest()
            large = {"X-Linked-Etag": f'"{digest}"', "X-Linked-Size": str(len(content))}
            self._send(200, content, {"X-Repo-Commit": COMMIT, "ETag": f'"{digest}"', **large}, body=body)

        def _describe(self, folder: Path, *, tree: bool, body: bool) -> None:
            if not folder.is_dir():
                return self._send(404, b"{}", {"X-Error-Code": "RepoNotFound"}, body=body)
            files = sorted(folder.iterdir())
            siblings = [{"rfilename": path.name} for path in files]
            facts = {"id": f"{folder.parent.name}/{folder.name}", "sha": COMMIT, "siblings": siblings}
            entries = [
                {"type": "file", "path": path.name, "size": path.stat().st_size, "oid": COMMIT} for path in files
            ]
            reply = json.dumps(entries if tree else facts).encode()
            self._send(200, reply, {"Content-Type": "application/json"}, body=body)

        def _send(self, status: int, content: bytes, headers: dict[str, str], *, body: bool) -> None:
            self.send_response(status)
            for name, value in {**headers, "Content-Length": str(len(content))}.items():
                self.send_header(name, value)
            self.end_headers()
            if body:
                self.wfile.write(content)

        def log_message(self, *words: object) -> None:
            """Nothing is printed."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", asked
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
