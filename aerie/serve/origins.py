"""Which pages of browsers may ask, and by which names of this machine.

A page of another site may not have its visitor's browser ask a server on their machine: neither by its own
name, nor by one of its own that it makes the machine's (DNS rebinding), nor by an image, a frame or a form,
of which the page sees nothing and the server has the work. Browsers say who asks in `Origin`, and where they
send none, in `Sec-Fetch-Site` (fetch.spec.whatwg.org, w3.org/TR/fetch-metadata).
"""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from typing import Final
from urllib.parse import SplitResult, urlsplit

from starlette.datastructures import Headers

from aerie.common.errors import UserError
from aerie.serve.errors import ApiError
from aerie.serve.service import Limits

ANY: Final = "*"
OWN: Final = "localhost, 127.0.0.0/8 and ::1"
PAGES: Final = ("/", "/npu")
"""What a link of another site may open: they have no data."""
FOREIGN: Final = ("cross-site", "same-site")
"""Of Sec-Fetch-Site. Another port of this machine is another server's, and of the same site."""


def is_own(name: str) -> bool:
    """Whether a host's name or address is this machine's own, whoever asks."""
    try:
        return name.lower() == "localhost" or ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


def check_origin(limits: Limits, method: str, path: str, headers: Headers) -> None:
    """ApiError 403 for a page that may not ask."""
    host, origin = headers.get("host", ""), headers.get("origin")
    if limits.is_local and limits.api_key is None and not is_own(_split(f"//{host}").hostname or ""):
        raise ApiError(403, f"Host is {host[:80]!r}, and this server answers to {OWN} without an API key")
    if ANY in limits.origins:
        return
    if origin is not None:
        if origin not in limits.origins and _split(origin).netloc.lower() != (host.lower() or None):
            raise ApiError(
                403, f"pages of {origin[:80]!r} may not ask; start with --cors-origin {origin[:80]}"
            )
    elif headers.get("sec-fetch-site", "").lower() in FOREIGN and not _opens_page(method, path, headers):
        raise ApiError(
            403,
            "a page of another site asks, and does not say which; open the address by itself, or start with "
            "--cors-origin and have the page ask by fetch",
        )


def _opens_page(method: str, path: str, headers: Headers) -> bool:
    """Whether a user follows a link to a page."""
    wanted = headers.get("sec-fetch-mode"), headers.get("sec-fetch-dest")
    return method == "GET" and path in PAGES and wanted == ("navigate", "document")


def _split(text: str) -> SplitResult:
    """Its parts; none of what is no address."""
    try:
        parts = urlsplit(text)
        parts.hostname  # noqa: B018 - which looks at the brackets
    except ValueError:
        return urlsplit("")
    return parts


def origins_of(given: Sequence[str], has_key: bool) -> tuple[str, ...]:
    """The origins of --cors-origin. UserError for what no browser sends, and for all of them where there is
    no key: any page would read what this machine's model says."""
    for origin in given:
        if origin in (ANY, "null"):
            if not has_key:
                raise UserError(
                    f"--cors-origin {origin} lets pages of every site ask, and there is no API key; give "
                    "--api-key, or name the sites"
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
            wanted = f"{bare.lower()}" if parts.scheme and parts.hostname else "https://example.org"
            raise UserError(
                f"--cors-origin is {origin!r}, and browsers send a scheme, a host and no more, in small "
                f"letters; give one such as {wanted}"
            )
    return tuple(given)
