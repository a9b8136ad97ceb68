"""The trials of a sweep, as its folder says; nothing of other kinds gets through."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from spreeze.dashboard.runs import MAX_FILE_BYTES, clean
from spreeze.errors import DamagedFile
from spreeze.store.files import read_json
from spreeze.store.metrics import is_number

FILE = "sweep.json"


def read_sweep(folder: Path) -> dict[str, Any] | None:
    """The trials, if the folder is that of a sweep."""
    try:
        stored = clean(read_json(folder, FILE, limit=MAX_FILE_BYTES))
    except (OSError, DamagedFile):
        return None
    rows = [_trial(row) for row in _list(stored.get("rows")) if isinstance(row, dict)]
    return {
        "trials": _number(stored.get("trials")),
        "score": _text(stored.get("score")) or "score",
        "lower_is_better": stored.get("direction") == "minimize",
        "rows": rows,
    }


def _trial(row: Mapping[str, Any]) -> dict[str, Any]:
    values = row.get("values")
    values = values if isinstance(values, dict) else {}
    return {
        "number": _number(row.get("number")),
        "state": _text(row.get("state")),
        "score": _number(row.get("score")),
        "seconds": _number(row.get("seconds")),
        "values": {name: value for name, value in values.items() if isinstance(value, str)},
        "curve": [value for value in _list(row.get("curve")) if is_number(value)],
        "runs": [name for name in _list(row.get("runs")) if isinstance(name, str)],
        "cause": _text(row.get("cause")),
    }


def _number(value: Any) -> Any:
    return value if is_number(value) else None


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
