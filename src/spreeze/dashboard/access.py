"""Who may look: every request is judged here before anything else sees it.

Web pages in the user's browser, other users of the machine and the network are outside. So: names
that a rebound DNS entry cannot have, a secret, a list of methods; nothing is told to other origins.
"""

from __future__ import annotations

import hmac
import secrets
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
TOKEN_BYTES = 16


def new_token() -> str:
    """128 random bits, fit for an address."""
    return secrets.token_urlsafe(TOKEN_BYTES)


@dataclass(frozen=True)
class Access:
    """What a request must know and be."""

    port: int
    token: str | None
    """None: whoever reaches the port may look."""
    hosts: tuple[str, ...] = LOCAL_NAMES
    """What the Host header may name; a rebound name of a stranger is none of them."""

    @property
    def cookie(self) -> str:
        """Cookies know no ports: each page has a name of its own."""
        return f"spreeze-{self.port}"

    def refuse(
        self, method: str, path: str, query: bytes, headers: dict[str, str]
    ) -> tuple[int, str] | None:
        """Status and reason if this request is not answered."""
        host = headers.get("host", "")
        name = host if host.endswith("]") else host.rpartition(":")[0] or host
        if name.lower() not in self.hosts:
            return 403, "This page has another address."
        origin = headers.get("origin")
        if origin is not None and origin not in (f"http://{host}", f"https://{host}"):
            return 403, "Other sites may not ask here."
        site = headers.get("sec-fetch-site", "none")
        if site not in ("none", "same-origin") and path != "/":
            return 403, "Other sites may not ask here."
        if method not in METHODS:
            return 405, "This page can only be read."
        if headers.get("content-length", "0") != "0" or "transfer-encoding" in headers:
            return 413, "Nothing is taken here."
        if not self._knows_token(path, query, headers):
            return 403, "The address lacks its token: open it as it was printed, ?token= included."
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
        return any([hmac.compare_digest(wanted, text.encode()) for text in given])


class Guard:
    """An application behind its access rules; sets the headers of every answer."""

    def __init__(self, app: App, access: Access) -> None:
        """Guard `app`."""
        self._app, self._access = app, access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer, or refuse."""
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
            await answer(guarded_send, *refusal)

    def _headers(self, path: str, message: MutableMapping[str, Any]) -> list[tuple[bytes, bytes]]:
        given = {name for name, _ in message.get("headers", [])}
        out = [(k.encode(), v.encode()) for k, v in HEADERS.items() if k.encode() not in given]
        if path == "/" and message["status"] == 200 and self._access.token is not None:
            cookie = (
                f"{self._access.cookie}={self._access.token}; Path=/; HttpOnly; SameSite=Strict"
            )
            out.append((b"set-cookie", cookie.encode()))
        return out


async def answer(send: Send, status: int, words: str) -> None:
    """A line of plain text; the connection ends with it."""
    headers = [(b"content-type", b"text/plain; charset=utf-8"), (b"connection", b"close")]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": words.encode() + b"\n"})
