"""Where this machine reaches a page: its port and its token, both made before the process that serves it."""

from __future__ import annotations

import contextlib
import socket
from importlib.util import find_spec
from pathlib import Path

from spreeze.dashboard.access import Access
from spreeze.dashboard.token import TokenFile, new_token

FILE = "dashboard.token"


class LocalPage:
    """Port and token of a page; they stay the same if the process that serves it is restarted."""

    def __init__(self, folder: Path) -> None:
        """Open a local port, and link the token into `folder`, for programs of this user. OSError if there is no port."""
        self.listening = socket.create_server(("127.0.0.1", 0))
        port, token = self.listening.getsockname()[1], new_token()
        self.access = Access(port=port, token=token)
        self.url = f"http://127.0.0.1:{port}/"
        """The address without the token."""
        self.address = f"{self.url}?token={token}"
        self.notes: list[str] = []
        """What the user should know."""
        self._link = folder / FILE
        self._token: TokenFile | None = TokenFile(token)
        with contextlib.suppress(FileNotFoundError):
            if self._link.is_symlink():  # of a process that was killed
                self._link.unlink()
        try:
            self._link.symlink_to(self._token.path)
        except OSError as error:  # not every file system has links
            self.notes.append(f"there is no {FILE} ({error.strerror}): read {self._token.path}")

    def forget_token(self) -> None:
        """Delete the token."""
        if self._token is not None:
            self._token.close()
            self._token = None
            with contextlib.suppress(OSError):  # such as a disk that is read-only by now
                self._link.unlink(missing_ok=True)

    def close(self) -> None:
        """Delete the token and free the port."""
        self.forget_token()
        self.listening.close()


def can_serve() -> bool:
    """Whether the packages of a page are installed."""
    return all(find_spec(module) is not None for module in ("starlette", "uvicorn"))
