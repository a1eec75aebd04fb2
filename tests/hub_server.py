"""A server on this machine that answers as the Hugging Face hub does, with one data set.

It has the few addresses that the datasets library asks, so that the library itself is not replaced.
"""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

JSON = {"Content-Type": "application/json"}


class Hub(ThreadingHTTPServer):
    """`name` at `commit` is the files of `root`; `asked` lists the paths of all requests."""

    def __init__(self, root: Path, name: str, commit: str) -> None:
        super().__init__(("127.0.0.1", 0), HubHandler)
        self.root = root
        self.name = name
        self.commit = commit
        self.asked: list[str] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def entry(self, path: Path) -> dict[str, Any]:
        name = path.relative_to(self.root).as_posix()
        if path.is_dir():
            return {"type": "directory", "path": name, "oid": "0" * 40}
        oid = hashlib.sha1(path.read_bytes()).hexdigest()
        return {"type": "file", "path": name, "size": path.stat().st_size, "oid": oid}


class HubHandler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Hub

    def log_message(self, *_: Any) -> None:
        pass

    def answer(self) -> None:
        address = urlsplit(self.path)
        self.server.asked.append(address.path)
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        prefix = f"/api/datasets/{self.server.name}"
        commit = self.server.commit
        content: Any = None
        if address.path in (prefix, f"{prefix}/revision/{commit}"):
            files = [path for path in self.server.root.rglob("*") if path.is_file()]
            siblings = [{"rfilename": self.server.entry(path)["path"]} for path in files]
            content = {"id": self.server.name, "sha": commit, "siblings": siblings}
        elif address.path.startswith(f"{prefix}/tree/{commit}"):
            folder = self.server.root / address.path.removeprefix(f"{prefix}/tree/{commit}")[1:]
            is_deep = "true" in parse_qs(address.query).get("recursive", [""])[0].lower()
            paths = folder.rglob("*") if is_deep else folder.iterdir()
            content = [self.server.entry(path) for path in sorted(paths)]
        elif address.path == f"{prefix}/paths-info/{commit}":
            try:
                names = json.loads(body)["paths"]
            except ValueError:
                names = parse_qs(body.decode())["paths"]
            paths = (self.server.root / name for name in names)
            content = [self.server.entry(path) for path in paths if path.exists()]
        if content is not None:
            self.send(200, json.dumps(content).encode(), JSON)
            return
        match = re.fullmatch(rf"/datasets/{self.server.name}/resolve/{commit}/(.*)", address.path)
        if match and (self.server.root / match[1]).is_file():
            self.send_file(self.server.root / match[1])
            return
        code = "EntryNotFound" if commit in address.path else "RevisionNotFound"
        self.send(404, b'{"error": "not found"}', {"X-Error-Code": code, **JSON})

    def send_file(self, path: Path) -> None:
        content = path.read_bytes()
        headers = {
            "ETag": f'"{hashlib.sha1(content).hexdigest()}"',
            "X-Repo-Commit": self.server.commit,
            "Accept-Ranges": "bytes",
        }
        part = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range") or "")
        if not part:
            self.send(200, content, headers)
            return
        last = len(content) - 1
        start = int(part[1])
        end = min(int(part[2] or last), last)
        headers["Content-Range"] = f"bytes {start}-{end}/{len(content)}"
        self.send(206, content[start : end + 1], headers)

    def send(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    do_GET = do_HEAD = do_POST = answer


@contextmanager
def serving(root: Path, name: str, commit: str) -> Iterator[Hub]:
    """A hub that has the data set until the end of the block."""
    with Hub(root, name, commit) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()
