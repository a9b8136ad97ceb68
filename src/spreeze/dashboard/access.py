"""Access control: every request is checked here before anything else sees it.

Other web pages in the browser, other users of the machine and the network have no access. So the Host
header must be a known name (against DNS rebinding), other origins are refused, a secret token is
required, and only reading is allowed.
"""

from __future__ import annotations

import hmac
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass
from http.cookies import CookieError, SimpleCookie
from typing import Any
from urllib.parse import parse_qs

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

LOCAL_NAMES = ("127.0.0.1", "localhost", "[::1]")
METHODS = ("GET", "HEAD")
HEADERS = {
    "content-security-policy": "default-src 'self'; img-src 'self' blob:; object-src 'none'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}


@dataclass(frozen=True)
class Access:
    """The rules for requests."""

    port: int
    token: str | None
    """None: anyone who can reach the port has access."""
    hosts: tuple[str, ...] = LOCAL_NAMES
    """Allowed names in the Host header."""

    @property
    def cookie(self) -> str:
        """Name of the cookie. It contains the port, because cookies are shared between the ports of a host."""
        return f"spreeze-{self.port}"

    def refuse(
        self, method: str, path: str, query: bytes, headers: dict[str, str]
    ) -> tuple[int, str] | None:
        """Status and reason if the request is refused, else None."""
        host = headers.get("host", "")
        name = host if host.endswith("]") else host.rpartition(":")[0] or host
        if name.lower() not in self.hosts:
            return 403, "Unknown host name. Open the address as it was printed."
        origin = headers.get("origin")
        if origin is not None and origin not in (f"http://{host}", f"https://{host}"):
            return 403, "Requests from other sites are refused."
        site = headers.get("sec-fetch-site", "none")
        if site not in ("none", "same-origin") and path != "/":
            return 403, "Requests from other sites are refused."
        if method not in METHODS:
            return 405, "This page is read-only."
        if headers.get("content-length", "0") != "0" or "transfer-encoding" in headers:
            return 413, "Requests must not have a body."
        if not self._knows_token(path, query, headers):
            return 403, "The token is missing. Open the address as it was printed, with ?token=."
        return None

    def _knows_token(self, path: str, query: bytes, headers: dict[str, str]) -> bool:
        if self.token is None:
            return True
        given = [headers.get("authorization", "").removeprefix("Bearer ")]
        if path == "/":
            given += parse_qs(query.decode("latin-1")).get("token", [])[:1]
        try:
            cookies = SimpleCookie(headers.get("cookie", ""))
        except CookieError:
            cookies = SimpleCookie()
        if self.cookie in cookies:
            given.append(cookies[self.cookie].value)
        wanted = self.token.encode()
        return any([hmac.compare_digest(wanted, value.encode()) for value in given])


class Guard:
    """Wraps an application: refuses requests, and adds security headers to every response."""

    def __init__(self, app: App, access: Access) -> None:
        """Guard `app`."""
        self._app, self._access = app, access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or refuse it."""
        if scope["type"] != "http":
            return
        headers = {k.decode("latin-1"): v.decode("latin-1") for k, v in scope["headers"]}
        method, path, query = scope["method"], scope["path"], scope["query_string"]

        async def guarded_send(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", []), *self._headers(path, message)]
            await send(message)

        refusal = self._access.refuse(method, path, query, headers)
        if refusal is None:
            await self._app(scope, receive, guarded_send)
        else:
            await send_text(guarded_send, *refusal)

    def _headers(self, path: str, message: MutableMapping[str, Any]) -> list[tuple[bytes, bytes]]:
        given = {name for name, _ in message.get("headers", [])}
        out = [(k.encode(), v.encode()) for k, v in HEADERS.items() if k.encode() not in given]
        if path == "/" and message["status"] == 200 and self._access.token is not None:
            cookie = (
                f"{self._access.cookie}={self._access.token}; Path=/; HttpOnly; SameSite=Strict"
            )
            out.append((b"set-cookie", cookie.encode()))
        return out


async def send_text(send: Send, status: int, text: str) -> None:
    """Send a line of plain text and close the connection."""
    headers = [(b"content-type", b"text/plain; charset=utf-8"), (b"connection", b"close")]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": text.encode() + b"\n"})
