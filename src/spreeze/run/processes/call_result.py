"""How a function call in a throw-away process ended."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


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


CallResult = Returned | Refused | Raised
