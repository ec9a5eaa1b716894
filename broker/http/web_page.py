"""The web page: what `scripts/build-web` made of `web/`, served from memory with headers that keep it to itself.

The browser is told to load nothing from elsewhere, to run no script but those of the build, and to show the page in
no frame. Names under /assets carry a hash of what is in them, so a browser may keep them for good; the page itself is
asked for each time.
"""

from __future__ import annotations

import gzip
import mimetypes
from functools import cache
from pathlib import Path
from typing import Final

import msgspec
from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

PAGE: Final = Path(__file__).parent / "page"
POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; font-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
NOT_BUILT: Final = (
    '<!doctype html><html lang="en"><meta charset="utf-8"><title>clusterbroker</title><h1>clusterbroker</h1>'
    "<p>The web page is not built. In the project's directory, with Node.js and npm installed, run "
    "<code>scripts/build-web</code>, then start this node again.</p>"
    '<p>The API is there all the same: <a href="/api">its reference</a>.</p></html>'
)
_COMPRESSIBLE: Final = (".html", ".js", ".css", ".svg")
_FOREVER: Final = "public, max-age=31536000, immutable"


class _File(msgspec.Struct, frozen=True):
    body: bytes
    zipped: bytes | None
    media_type: str


@cache
def _loaded(directory: Path) -> dict[str, _File]:
    """The files by path. They are read once: a path in a request is looked up, and never opened."""
    found = {}
    for path in sorted(directory.rglob("*")):
        if path.is_file() and not path.name.startswith("."):
            body = path.read_bytes()
            zipped = gzip.compress(body, mtime=0) if path.suffix in _COMPRESSIBLE else None
            kind = "text/javascript" if path.suffix == ".js" else mimetypes.guess_type(path.name)[0]
            found[f"/{path.relative_to(directory).as_posix()}"] = _File(
                body, zipped, kind or "application/octet-stream"
            )
    return found


def add(app: FastAPI, directory: Path) -> None:
    """Adds `/` and what it needs. Without a built page `/` says how to build it."""
    files = _loaded(directory)
    headers = {"content-security-policy": POLICY, "cross-origin-opener-policy": "same-origin"}

    def route(path: str, file: _File, cached: str) -> None:
        async def send(request: Request) -> Response:
            told = headers | {"cache-control": cached}
            body = file.body
            if file.zipped is not None and "gzip" in request.headers.get("accept-encoding", ""):
                told["content-encoding"], body = "gzip", file.zipped
            return Response(body, headers=told, media_type=file.media_type)

        app.add_api_route(path, send, methods=["GET"], include_in_schema=False)

    for path, file in files.items():
        if path != "/index.html":
            route(path, file, _FOREVER if path.startswith("/assets/") else "no-cache")
    index = files.get("/index.html")
    if index is not None:
        route("/", index, "no-cache")
        return

    async def not_built(_request: Request) -> Response:
        return HTMLResponse(NOT_BUILT, headers=headers)

    app.add_api_route("/", not_built, methods=["GET"], include_in_schema=False)
