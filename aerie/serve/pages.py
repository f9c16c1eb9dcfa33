"""The pages for the browser, and the files of the chat page.

A page fetches only from this server. The chat page has no script or style within its HTML, and its policy has
Trusted Types: the browser itself refuses every write of HTML by a script, so that no text of a model can
become an element.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple

from fastapi import FastAPI, Request
from starlette.responses import Response

from aerie.serve.errors import ApiError

FOLDER: Final = Path(__file__).parent
STATIC_PREFIX: Final = "/page/"
"""Where the files of the chat page are. They contain no data, and need no API key."""
MEDIA_TYPES: Final = {
    ".html": "text/html",
    ".css": "text/css",
    ".js": "text/javascript",
    ".mjs": "text/javascript",
}
CLOSED_CSP: Final = (
    "default-src 'none'; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
"""What no page may do: only requests to this server are allowed."""
CHAT_CSP: Final = (
    f"{CLOSED_CSP}; script-src 'self'; style-src 'self'; require-trusted-types-for 'script'; "
    "trusted-types 'none'"
)
PAGE_HEADERS: Final = {"X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer"}
CACHE_CONTROL: Final = "no-cache"
"""A browser keeps the files and asks each time whether they have changed: a newer server is seen at once."""


class StaticFile(NamedTuple):
    """A file as it is sent. etag: changes with the content."""

    content: bytes
    media_type: str
    etag: str

    def response(self, request: Request, headers: Mapping[str, str]) -> Response:
        """The file, or 304 if the browser has this content."""
        all_headers = {**PAGE_HEADERS, **headers, "ETag": self.etag, "Cache-Control": CACHE_CONTROL}
        if self.etag in request.headers.get("if-none-match", ""):
            return Response(status_code=304, headers=all_headers)
        return Response(self.content, media_type=self.media_type, headers=all_headers)


def read_static_file(path: Path) -> StaticFile:
    """Read a file. Its type follows from its suffix."""
    content = path.read_bytes()
    etag = f'"{hashlib.sha256(content).hexdigest()[:32]}"'
    return StaticFile(content, f"{MEDIA_TYPES[path.suffix]}; charset=utf-8", etag)


def add_pages(app: FastAPI) -> None:
    """Add all pages, and the files of the chat page."""
    files = {path.name: read_static_file(path) for path in (FOLDER / "page").iterdir() if path.is_file()}
    _add_page(app, "/", files.pop("index.html"), CHAT_CSP)
    npu = read_static_file(FOLDER / "npu.html")
    _add_page(app, "/npu", npu, f"{CLOSED_CSP}; style-src 'unsafe-inline'; script-src {_script_hash(npu)}")

    @app.get(f"{STATIC_PREFIX}{{name}}", include_in_schema=False)
    async def file(name: str, request: Request) -> Response:
        if name not in files:
            raise ApiError(404, f"the chat page has no file {name[:80]!r}; it has {', '.join(sorted(files))}")
        return files[name].response(request, {})


def _add_page(app: FastAPI, path: str, page: StaticFile, csp: str) -> None:
    @app.get(path)
    @app.head(path, include_in_schema=False)
    async def shown(request: Request) -> Response:
        return page.response(request, {"Content-Security-Policy": csp})


def _script_hash(page: StaticFile) -> str:
    """The hash by which a policy allows the only script within a page."""
    script = page.content.partition(b"<script>")[2].partition(b"</script>")[0]
    return f"'sha256-{base64.b64encode(hashlib.sha256(script).digest()).decode()}'"
