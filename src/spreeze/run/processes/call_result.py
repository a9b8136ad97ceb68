"""How a role, or a function call in a throw-away process, ended: what its process reports."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from spreeze.errors import EnvBroken, RunFailed, UsageError

MAX_TRACEBACK_BYTES, MAX_CAUSE = 30_000, 300


@dataclass(frozen=True)
class Returned:
    """It returned a value."""

    value: Any


@dataclass(frozen=True)
class Refused:
    """It raised a UsageError."""

    problems: list[str]


@dataclass(frozen=True)
class Raised:
    """It raised something else. The exception itself may not be picklable."""

    traceback: str
    cause: str
    """The exception in one line."""
    is_final: bool = False
    """Whether another start would not help: a RunFailed, such as an environment that fails too often."""

    @staticmethod
    def from_exception(error: BaseException, traceback: str) -> Raised:
        """Describe an exception; of a very long traceback the end is kept."""
        first_line, _, _ = str(error).partition("\n")
        cause = f"{type(error).__name__}: {first_line}"
        if isinstance(error, UsageError):  # its message says it all
            traceback = str(error)
        if isinstance(error, EnvBroken):  # the environment's own traceback says more than ours
            traceback, cause = error.newest, error.why
        kept = traceback.encode(errors="replace")[-MAX_TRACEBACK_BYTES:].decode(errors="replace")
        return Raised(kept, cause[:MAX_CAUSE], isinstance(error, RunFailed | UsageError))


CallResult = Returned | Refused | Raised
