"""A server on loopback with the part of two protocols that checkpoints need: the XML API of Google Cloud Storage, and the
Blob service of Azure. It keeps objects in memory and lists few per page, so that clients must request further pages.
"""

from __future__ import annotations

import hashlib
import threading
from contextlib import contextmanager
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

if TYPE_CHECKING:
    from collections.abc import Generator

PAGE = 3
"""Objects of one page of a listing."""


class ObjectServer(ThreadingHTTPServer):
    """Objects by path, and the number of requests of each kind."""

    daemon_threads = True

    def __init__(self, handler: type[BaseHTTPRequestHandler]) -> None:
        super().__init__(("127.0.0.1", 0), handler)
        self.objects: dict[str, bytes] = {}
        self.lock = threading.Lock()
        self.requests: dict[str, int] = {}
        self.refuses = False
        """Answer every request with 403."""

    @property
    def address(self) -> str:
        host, port = self.server_address[:2]
        return f"{'http'}://{host}:{port}"


@contextmanager
def serving(handler: type[BaseHTTPRequestHandler]) -> Generator[ObjectServer]:
    with ObjectServer(handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


class _Objects(BaseHTTPRequestHandler):
    """The common part of both protocols: an object's name is the path of its requests."""

    protocol_version = "HTTP/1.1"
    server: ObjectServer

    def log_message(self, format: str, *args: object) -> None:
        pass

    def _answer(self, status: int, body: bytes = b"", **headers: str) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def _begin(self, kind: str) -> tuple[str, dict[str, str], bytes] | None:
        """Path, query and body of the request; None if it was refused."""
        parts = urlsplit(self.path)
        query = {name: values[0] for name, values in parse_qs(parts.query).items()}
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        with self.server.lock:
            self.server.requests[kind] = self.server.requests.get(kind, 0) + 1
        if self.server.refuses:
            self._answer(403, b"<Error><Code>AccessDenied</Code></Error>")
            return None
        return unquote(parts.path), query, body

    def _put(self, path: str, body: bytes, *, create: bool, taken: int) -> None:
        with self.server.lock:
            if create and path in self.server.objects:
                self._answer(taken)
                return
            self.server.objects[path] = body
        self._answer(201, ETag=_tag(body), Last_Modified=formatdate(usegmt=True))

    def _get(self, path: str) -> None:
        with self.server.lock:
            body = self.server.objects.get(path)
        if body is None:
            self._answer(404)
        else:
            self._answer(200, body, ETag=_tag(body), Last_Modified=formatdate(usegmt=True))

    def _delete(self, path: str) -> bool:
        with self.server.lock:
            return self.server.objects.pop(path, None) is not None

    def _page(self, folder: str, prefix: str, after: str) -> tuple[list[tuple[str, bytes]], str]:
        """One page of the objects of a bucket, and the name after which the next page starts; empty after the last."""
        with self.server.lock:
            named = sorted(
                (path.removeprefix(folder), body)
                for path, body in self.server.objects.items()
                if path.startswith(folder + prefix)
            )
        left = [(name, body) for name, body in named if name > after]
        return left[:PAGE], left[PAGE - 1][0] if len(left) > PAGE else ""


class GoogleHandler(_Objects):
    """Paths are `/BUCKET/NAME`."""

    def do_PUT(self) -> None:
        if begun := self._begin("put"):
            create = self.headers.get("x-goog-if-generation-match") == "0"
            self._put(begun[0], begun[2], create=create, taken=412)

    def do_GET(self) -> None:
        bucket_only = urlsplit(self.path).path.strip("/").count("/") == 0
        if not (begun := self._begin("list" if bucket_only else "get")):
            return
        path, query, _ = begun
        if not bucket_only:
            self._get(path)
            return
        after = query.get("continuation-token", "")
        page, following = self._page(path.rstrip("/") + "/", query.get("prefix", ""), after)
        contents = "".join(
            f"<Contents><Key>{escape(name)}</Key><Size>{len(body)}</Size><ETag>{_tag(body)}</ETag>"
            "<LastModified>2026-01-01T00:00:00.000Z</LastModified></Contents>"
            for name, body in page
        )
        token = f"<NextContinuationToken>{following}</NextContinuationToken>" if following else ""
        self._answer(200, f"<ListBucketResult>{contents}{token}</ListBucketResult>".encode())

    def do_DELETE(self) -> None:
        if begun := self._begin("delete"):
            self._answer(204 if self._delete(begun[0]) else 404)


class AzureHandler(_Objects):
    """Paths are `/ACCOUNT/CONTAINER/NAME`; requests are signed with the account's key."""

    def _begin(self, kind: str) -> tuple[str, dict[str, str], bytes] | None:
        signed = self.headers.get("Authorization", "").startswith("SharedKey devstoreaccount1:")
        self.server.refuses |= not signed
        return super()._begin(kind)

    def do_PUT(self) -> None:
        if begun := self._begin("put"):
            assert self.headers["x-ms-blob-type"] == "BlockBlob"
            create = self.headers.get("If-None-Match") == "*"
            self._put(begun[0], begun[2], create=create, taken=409)

    def do_GET(self) -> None:
        listing = "comp=list" in self.path
        if not (begun := self._begin("list" if listing else "get")):
            return
        path, query, _ = begun
        if not listing:
            self._get(path)
            return
        after = query.get("marker", "")
        page, following = self._page(path.rstrip("/") + "/", query.get("prefix", ""), after)
        blobs = "".join(
            f"<Blob><Name>{escape(name)}</Name><Properties>"
            "<Last-Modified>Thu, 01 Jan 2026 00:00:00 GMT</Last-Modified>"
            f"<Content-Length>{len(body)}</Content-Length>"
            "<Content-Type>application/octet-stream</Content-Type></Properties></Blob>"
            for name, body in page
        )
        marker = f"<NextMarker>{following}</NextMarker>"
        result = f"<EnumerationResults><Blobs>{blobs}</Blobs>{marker}</EnumerationResults>"
        self._answer(200, result.encode())

    def do_POST(self) -> None:
        """A batch of deletions."""
        if not (begun := self._begin("delete")):
            return
        _, query, body = begun
        assert query["comp"] == "batch"
        targets = [line.split()[1] for line in body.decode().splitlines() if "DELETE " in line]
        container = urlsplit(self.path).path.split("/")[1]
        parts = ""
        for number, target in enumerate(targets):
            path = unquote(urlsplit(target).path)
            path = path if path.startswith(f"/{container}/") else f"/{container}{path}"
            status = "202 Accepted" if self._delete(path) else "404 Not Found"
            parts += f"--batch\r\nContent-Type: application/http\r\nContent-ID: {number}\r\n\r\n"
            parts += f"HTTP/1.1 {status}\r\n\r\n\r\n"
        self._answer(
            202,
            f"{parts}--batch--\r\n".encode(),
            Content_Type="multipart/mixed; boundary=batch",
        )


def _tag(body: bytes) -> str:
    return f'"{hashlib.md5(body).hexdigest()}"'
