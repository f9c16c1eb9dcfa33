"""Check which web pages may send requests, and by which host names.

A page of another site must not make its visitor's browser send requests to a server on their machine: not by
the server's own name, not by a name of the page's site that resolves to this machine (DNS rebinding), and not
by an image, a frame or a form. Browsers name the page's site in `Origin`, and without it send
`Sec-Fetch-Site` (fetch.spec.whatwg.org, w3.org/TR/fetch-metadata).
"""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from typing import Final
from urllib.parse import SplitResult, urlsplit

from starlette.datastructures import Headers

from aerie.common.errors import UserError
from aerie.serve.errors import ApiError
from aerie.serve.service import ServerLimits

ANY: Final = "*"
LOCAL_NAMES: Final = "localhost, 127.0.0.0/8 and ::1"
PAGE_PATHS: Final = ("/", "/npu")
"""Pages that a link on another site may open: they contain no data."""
OTHER_SITES: Final = ("cross-site", "same-site")
"""Values of Sec-Fetch-Site. Another port of this machine is another server, and counts as same-site."""


def is_local_name(name: str) -> bool:
    """Whether a host name or address always means this machine."""
    try:
        return name.lower() == "localhost" or ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


def check_origin(limits: ServerLimits, method: str, path: str, headers: Headers) -> None:
    """Raise ApiError 403 if the page that sent the request may not."""
    host, origin = headers.get("host", ""), headers.get("origin")
    if limits.is_local and limits.api_key is None and not is_local_name(_split(f"//{host}").hostname or ""):
        raise ApiError(
            403, f"Host is {host[:80]!r}, and this server answers to {LOCAL_NAMES} without an API key"
        )
    if ANY in limits.origins:
        return
    if origin is not None:
        if origin not in limits.origins and _split(origin).netloc.lower() != (host.lower() or None):
            raise ApiError(
                403, f"pages of {origin[:80]!r} is not allowed; start with --cors-origin {origin[:80]}"
            )
    elif headers.get("sec-fetch-site", "").lower() in OTHER_SITES and not _opens_page(method, path, headers):
        raise ApiError(
            403,
            "the request is from a page of another site and has no Origin header; open the "
            "address directly, or start with --cors-origin and have the page use fetch",
        )


def _opens_page(method: str, path: str, headers: Headers) -> bool:
    """Whether the user follows a link to a page."""
    destination = headers.get("sec-fetch-mode"), headers.get("sec-fetch-dest")
    return method == "GET" and path in PAGE_PATHS and destination == ("navigate", "document")


def _split(text: str) -> SplitResult:
    """The parts of a URL; empty parts if the text is no URL."""
    try:
        parts = urlsplit(text)
        parts.hostname  # noqa: B018 - which looks at the brackets
    except ValueError:
        return urlsplit("")
    return parts


def parse_origins(origins: Sequence[str], has_key: bool) -> tuple[str, ...]:
    """Check and return the values of --cors-origin. Raises UserError if a value is nothing that a browser
    sends, and if all sites are allowed without an API key: any page could then read the model's output."""
    for origin in origins:
        if origin in (ANY, "null"):
            if not has_key:
                raise UserError(
                    f"--cors-origin {origin} allows requests from pages of every site, and no "
                    "API key is set; give --api-key, or name the sites"
                )
            continue
        parts = _split(origin)
        bare = f"{parts.scheme}://{parts.netloc}"
        if (
            not (parts.scheme and parts.hostname)
            or origin != bare
            or "@" in origin
            or origin != origin.lower()
        ):
            example = f"{bare.lower()}" if parts.scheme and parts.hostname else "https://example.org"
            raise UserError(
                f"--cors-origin is {origin!r}, and browsers send only a scheme and a host, in "
                f"small letters; give one such as {example}"
            )
    return tuple(origins)
