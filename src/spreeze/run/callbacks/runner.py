"""Calls the hooks of callbacks, in a thread: one that blocks delays other callbacks, and nothing else.

Events wait in a queue that is bounded. `on_log` waits at most once, because the newest metrics are all that matters.
Other events that find the queue full are dropped and counted.
"""

from __future__ import annotations

import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from spreeze.run.callbacks import Callback
from spreeze.run.callbacks.events import Event, NewestMetrics
from spreeze.run.callbacks.live_run import LiveRun
from spreeze.store.metrics import Records

MAX_EVENTS = 1000
SLOW_S = 10.0
"""A hook that takes longer is worth a warning."""
END_LIMIT_S = 30.0
"""How long a run waits at its end for its callbacks."""


class Problem(NamedTuple):
    """A hook that raised."""

    callback: str
    hook: str
    cause: str
    """In one line."""
    traceback: str
    is_fatal: bool


class CallbackRunner:
    """Calls the hooks of the callbacks of one run."""

    def __init__(
        self, callbacks: Sequence[Callback], run: LiveRun, recorder: Records, log: Path
    ) -> None:
        """`recorder` gets what they log, and the file `log` their tracebacks. Call `start` for a thread, or `work` now and then."""
        self.problems: deque[Problem] = deque()
        """Hooks that raised; the supervisor takes them out."""
        self.num_dropped = 0
        self.cpu_s = 0.0
        """CPU time that the hooks have taken."""
        self._active, self._run = list(callbacks), run
        self._recorder, self._log = recorder, log
        self._metrics = NewestMetrics(run.path / "metrics")
        self._queue: deque[Event] = deque()
        self._wake, self._closing = threading.Event(), False
        self._in_hook: tuple[str, float] | None = None
        self._thread = threading.Thread(target=self._loop, name="callbacks", daemon=True)

    def start(self) -> None:
        """Call hooks in a thread from now on."""
        self._thread.start()

    def tell(self, event: Event) -> None:
        """Have a hook called; never waits."""
        if event.hook == "on_log" and event in self._queue:
            return
        if len(self._queue) >= MAX_EVENTS:
            self.num_dropped += 1
            return
        self._queue.append(event)
        self._wake.set()

    def work(self) -> None:
        """Call the hooks that are due, in this thread."""
        while self._queue:
            self._call_all(self._queue.popleft())

    def slow_hook(self) -> tuple[str, float] | None:
        """The hook that has been running for long, and for how many seconds."""
        running = self._in_hook
        if running is None or time.monotonic() - running[1] < SLOW_S:
            return None
        return running[0], time.monotonic() - running[1]

    def finish(self, hurry: Callable[[], bool]) -> str | None:
        """Call the hooks that are still due, for a limited time; returns the hook that did not end."""
        self._closing = True
        self._wake.set()
        if not self._thread.is_alive():
            self.work()
            return None
        deadline = time.monotonic() + END_LIMIT_S
        while self._thread.is_alive() and time.monotonic() < deadline and not hurry():
            self._thread.join(0.05)
        return self._in_hook[0] if self._thread.is_alive() and self._in_hook else None

    def _loop(self) -> None:
        while not self._closing:
            self._wake.wait()
            self._wake.clear()
            self.work()
        self.work()

    def _call_all(self, event: Event) -> None:
        began_s = time.thread_time()
        arguments = event.arguments
        if event.hook == "on_log":
            if not self._metrics.update():
                return
            self._run.metrics = self._metrics.values()
        for callback in list(self._active):
            if event.hook == "on_log":  # a copy, because the callback may change it
                arguments = (dict(self._run.metrics),)
            self._call(callback, event.hook, arguments)
        self._record()
        self.cpu_s += time.thread_time() - began_s

    def _call(self, callback: Callback, hook: str, arguments: tuple[Any, ...]) -> None:
        name = type(callback).__name__
        self._in_hook = f"{name}.{hook}", time.monotonic()
        try:
            getattr(callback, hook)(self._run, *arguments)
        except (Exception, SystemExit) as error:
            self._active.remove(callback)
            cause = f"{type(error).__name__}: {error}".splitlines()[0][:300]
            trace = "".join(traceback.format_exception(error)).rstrip()
            with suppress(OSError), self._log.open("a", errors="replace") as log:
                log.write(f"{name} raised in {hook}\n{trace}\n")
            self.problems.append(Problem(name, hook, cause, trace, callback.fatal))
        finally:
            self._in_hook = None

    def _record(self) -> None:
        """Write what was logged since the last time."""
        run = self._run
        if run.logged:
            values, run.logged = run.logged, {}
            self._recorder.record(
                time_s=run.time_s, env_steps=run.env_steps, updates=run.updates, **values
            )
