"""What the learner does when its networks diverge to NaN: nothing is published, the last good state returns."""

from __future__ import annotations

from collections import deque

from spreeze.errors import RunFailed
from spreeze.learning.data_parallel.shards import AnyReplay
from spreeze.learning.last_good import LastGood, Verdict
from spreeze.learning.updaters import AnyUpdater
from spreeze.roles.context import Context

CHECK_EVERY_S = 1.0
MINUTE_S = 60.0
NEWEST_ROWS, EXTREME = 4096, 1e5
"""How many of the newest rows are searched for the cause, and what counts as an extreme number there."""
WORDS = {"m": "Adam's mean of", "v": "Adam's variance of"}
ADVICE = (
    "Lower --algo.lr, set --algo.max-grad-norm, or scale rewards down with --algo.reward-scale."
)


class RepeatedDivergence(RunFailed):
    """The networks diverged again and again: these settings cannot learn this task."""


class DivergenceGuard:
    """Checks the training state about once a second, and goes back to its last good copy if it is broken."""

    def __init__(self, ctx: Context, updater: AnyUpdater, replay: AnyReplay, updates: int) -> None:
        """The state as it is now, after this many updates, is the first good one."""
        self._ctx, self._replay = ctx, replay
        self.last_good = LastGood(updater, updates)
        self._every_s = min(CHECK_EVERY_S, ctx.config.checkpoint.every_s)
        self._next_s = ctx.now()
        self._rollbacks_s: deque[float] = deque()

    def is_broken(self, updates: int) -> bool:
        """Continue to check the state, or start another check if one is due; whether it has found NaN."""
        if self.last_good.poll() is Verdict.BAD:
            return True
        if self._ctx.now() >= self._next_s and self.last_good.take(updates):
            self._next_s = self._ctx.now() + self._every_s
        return False

    def settle(self, updates: int) -> None:
        """Check the newest state now; if it is broken, go back to the last good one."""
        verdict = self.last_good.poll(wait=True)
        if verdict is not Verdict.BAD:
            self.last_good.take(updates)
            verdict = self.last_good.poll(wait=True)
        if verdict is Verdict.BAD:
            self._go_back(updates)

    def roll_back(self, updates: int) -> None:
        """Go back to the last good state. RepeatedDivergence if that happens too often."""
        bad = self._go_back(updates)
        now, limit = self._ctx.now(), self._ctx.config.limits.rollbacks_per_minute
        self._rollbacks_s.append(now)
        while self._rollbacks_s[0] < now - MINUTE_S:
            self._rollbacks_s.popleft()
        if len(self._rollbacks_s) > limit:
            raise RepeatedDivergence(
                f"the networks diverged to NaN {len(self._rollbacks_s)} times within a minute, "
                f"now in {bad}. {self._newest_rows()}{ADVICE} "
                f"Up to {limit} times are allowed (--limits.rollbacks-per-minute)."
            )

    def _go_back(self, updates: int) -> str:
        """Restore the last good state and say so; returns what was not finite, in words."""
        bad = in_words(self.last_good.restore())
        self._replay.mend_priorities()
        self._ctx.counters["rollbacks"] += 1
        self._ctx.note(
            f"after {updates:,} updates there was NaN or infinity in {bad}: the networks go back to "
            f"their state after {self.last_good.good.updates:,} updates. {self._newest_rows()}{ADVICE}"
        )
        return bad

    def _newest_rows(self) -> str:
        """Extreme numbers in the newest rows, which may be the cause; empty if there are none."""
        rows = self._replay.newest(NEWEST_ROWS)
        found = []
        for name, columns in self._replay.layout.columns().items():
            largest = (
                float(rows[:, columns].abs().max()) if len(rows) and name != "version" else 0.0
            )
            if not largest <= EXTREME:
                found.append(f"{name} {largest:.1g}")
        if not found:
            return ""
        return f"The newest transitions hold very large numbers ({', '.join(found)}). "


def in_words(names: list[str]) -> str:
    """Vectors of the training state, for a person: `critic_m` is "Adam's mean of critic"."""
    return ", ".join(map(_word, names)) or "the policy"


def _word(name: str) -> str:
    network, _, moment = name.rpartition("_")
    if moment in WORDS:
        return f"{WORDS[moment]} {network}"
    return "statistics" if name == "stats" else name.replace("_", " ")
