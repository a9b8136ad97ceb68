"""Finds roles whose environment leaks memory, before the machine runs out of it."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping

import psutil

LOOK_EVERY_S = 2.0
SETTLED_S = 5.0
"""What a process uses this long after its start counts as its usual need."""
GROWTH = 2.0
"""A process leaks if it uses this many times its usual need, and more than the limit."""


def private_bytes(pid: int) -> int | None:
    """Memory that only this process uses; None if it is gone."""
    with contextlib.suppress(psutil.Error):
        memory = psutil.Process(pid).memory_info()
        return int(memory.rss - memory.shared)
    return None


class LeakWatch:
    """Remembers the usual need of each process, and tells which ones have grown far beyond it."""

    def __init__(self, limit_bytes: float) -> None:
        """Below `limit_bytes` no process leaks, however fast it has grown."""
        self._limit_bytes = limit_bytes
        self._first_seen_s: dict[int, float] = {}
        self._usual: dict[int, int] = {}

    def look(self, used: Mapping[int, int], now_s: float) -> list[int]:
        """The processes that leak, given the memory of each by its pid."""
        self._first_seen_s = {pid: self._first_seen_s.get(pid, now_s) for pid in used}
        settled = [pid for pid in used if now_s - self._first_seen_s[pid] >= SETTLED_S]
        self._usual = {pid: self._usual.get(pid, used[pid]) for pid in settled}
        return [
            pid
            for pid, usual in self._usual.items()
            if used[pid] > max(self._limit_bytes, GROWTH * usual)
        ]
