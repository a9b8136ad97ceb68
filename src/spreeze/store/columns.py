"""The metrics of a run as columns of one length, for programs that compute with them."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from spreeze.errors import UsageError
from spreeze.store.metrics import MetricsReader, is_number
from spreeze.text import suggest

AXES = ("time_s", "env_steps", "updates")
MAX_COLUMNS = 1000
"""A stored run may hold anything; further names are left out."""


def read_columns(folder: Path, role: str | None = None) -> dict[str, NDArray[Any]]:
    """The numbers in the `metrics` folder of a run, by name, with the `role` that wrote each row.

    Rows are ordered by time. A number that a row does not have is NaN; texts, such as events, are left out. `role`
    keeps the rows of one process, "sampler-1", or of all of one kind, "sampler".
    """
    roles: list[str] = []
    rows: list[dict[str, Any]] = []
    names: dict[str, None] = dict.fromkeys(AXES)
    written: set[str] = set()
    for process, record in MetricsReader(folder).read_new():
        kind = process.rpartition("-")[0]
        written |= {kind, process}
        if role not in (None, kind, process):
            continue
        numbers = {name: value for name, value in record.items() if is_number(value)}
        if numbers.keys() <= set(AXES):
            continue  # an event
        roles.append(process)
        rows.append(numbers)
        for name in numbers:
            if len(names) < MAX_COLUMNS:
                names.setdefault(name)
    if role is not None and role not in written:
        known = ", ".join(sorted(written)) or "none yet"
        raise UsageError([f"no metrics of {role!r}; there are {known}.{suggest(role, written)}"])
    order = np.argsort([row.get("time_s", math.nan) for row in rows], kind="stable")
    columns: dict[str, NDArray[Any]] = {"role": np.array(roles, np.str_)[order]}
    for name in names:
        columns[name] = np.array([row.get(name, math.nan) for row in rows], np.float64)[order]
    return columns
