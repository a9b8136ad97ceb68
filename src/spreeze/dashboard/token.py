"""The secret of the page, readable by its user for as long as the process that made it lives."""

from __future__ import annotations

import os
import secrets
from pathlib import Path

TOKEN_BYTES = 16


def new_token() -> str:
    """128 random bits that can be part of an address."""
    return secrets.token_urlsafe(TOKEN_BYTES)


class TokenFile:
    """A token in anonymous memory. The kernel frees it with this process, also after `kill -9`."""

    def __init__(self, token: str) -> None:
        """Write it; only this user can read it."""
        self._fd = os.memfd_create("token")
        os.fchmod(self._fd, 0o600)
        os.write(self._fd, token.encode() + b"\n")

    @property
    def path(self) -> Path:
        """Where other programs of this user read it."""
        return Path(f"/proc/{os.getpid()}/fd/{self._fd}")

    def close(self) -> None:
        """Forget the token."""
        os.close(self._fd)
