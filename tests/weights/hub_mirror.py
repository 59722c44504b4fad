"""A mirror of the Hugging Face hub on this machine: the few routes that downloading a repository takes."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@contextmanager
def serve_mirror(root: Path) -> Iterator[tuple[str, list[str]]]:
    """Serves the folders ``root/OWNER/NAME`` as models and ``root/datasets/OWNER/NAME`` as data sets.

    Gives the address, and the paths that are asked for. A repository whose name begins with ``gated`` is closed, and the only
    revisions are main and `COMMIT`.
    """
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._answer(body=True)

        def do_HEAD(self) -> None:
            self._answer(body=False)

        def _answer(self, *, body: bool) -> None:
            asked.append(self.path)
            parts = self.path.partition("?")[0].strip("/").split("/")
            if parts[0] == "api" and len(parts) < 4:
                return self._send(404, b"{}", {}, body=body)
            if parts[0] == "api":
                kind, owner, name, *rest = parts[1:]
                inside = root / "datasets" if kind == "datasets" else root
                revision = "/".join(rest[1:]) if rest else "main"
                return self._describe(inside / owner / name, unquote(revision), tree=rest[:1] == ["tree"], body=body)
            inside = root / parts.pop(0) if parts[0] == "datasets" else root
            if parts[1].startswith("gated"):
                return self._send(403, b"{}", {"X-Error-Code": "GatedRepo"}, body=body)
            file = inside.joinpath(*parts[:2], *map(unquote, parts[4:]))  # OWNER/NAME/resolve/REVISION/FILE
            if not file.is_file():
                return self._send(404, b"", {"X-Error-Code": "EntryNotFound"}, body=body)
            content = file.read_bytes()
            digest = hashlib.sha256(content).hexdigest()
            large = {"X-Linked-Etag": f'"{digest}"', "X-Linked-Size": str(len(content))}
            self._send(200, content, {"X-Repo-Commit": COMMIT, "ETag": f'"{digest}"', **large}, body=body)

        def _describe(self, folder: Path, revision: str, *, tree: bool, body: bool) -> None:
            if not folder.is_dir() or revision not in ("main", COMMIT):
                fault = "RevisionNotFound" if folder.is_dir() else "RepoNotFound"
                return self._send(404, b"{}", {"X-Error-Code": fault}, body=body)
            sizes = {path.relative_to(folder).as_posix(): path.stat().st_size for path in sorted(folder.rglob("*.*"))}
            siblings = [{"rfilename": path} for path in sizes]
            facts = {"id": f"{folder.parent.name}/{folder.name}", "sha": COMMIT, "siblings": siblings}
            entries = [{"type": "file", "path": path, "size": size, "oid": COMMIT} for path, size in sizes.items()]
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
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", asked
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
