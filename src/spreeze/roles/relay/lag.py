"""How old rows are: how long ago the policy that made them was replaced. It needs no common clock."""

from __future__ import annotations

from collections import deque
from typing import Any

import numpy as np
from numpy.typing import NDArray


class PolicyAges:
    """When each policy was replaced by a newer one."""

    def __init__(self, max_lag_s: float) -> None:
        """Rows are too old if their policy was replaced more than `max_lag_s` ago."""
        self._max_lag_s = max_lag_s
        self._versions: deque[int] = deque()
        self._replaced_s: deque[float] = deque()
        self._newest = 0
        self._gone = -1
        """The newest version that was replaced longer ago than the lag allows."""

    def see(self, version: int, now_s: float) -> None:
        """This is the newest policy now."""
        if version != self._newest:
            self._versions.append(self._newest)
            self._replaced_s.append(now_s)
            self._newest = version
        while self._replaced_s and now_s - self._replaced_s[0] > self._max_lag_s:
            self._replaced_s.popleft()
            self._gone = self._versions.popleft()

    def too_old(self, versions: NDArray[Any], now_s: float) -> bool:
        """Whether half of these rows, or more, are too old."""
        self.see(self._newest, now_s)
        behind = (np.uint32(self._newest % 2**32) - versions).view(
            np.int32
        )  # right across overflow
        return self._newest - int(np.median(behind)) <= self._gone
