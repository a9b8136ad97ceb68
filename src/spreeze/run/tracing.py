"""The end of a trace: what the processes have recorded becomes one file."""

from __future__ import annotations

import threading

from spreeze.roles.context import TRACE_DELAY_S
from spreeze.store.rundir import RunDir
from spreeze.store.trace import join_traces
from spreeze.wires.control import Control

SAVE_S = 1.0
"""How long after its end all processes have saved their parts of a trace."""
END_LIMIT_S = 10.0
"""How long the end of a run waits for the file."""


class TraceFile(threading.Thread):
    """Joins the parts of a trace in a thread, because that takes a second or two."""

    def __init__(self, run: RunDir, seconds: float, control: Control) -> None:
        """The processes record for `seconds`."""
        super().__init__(name="trace", daemon=True)
        self.percent: dict[str, dict[str, float]] | None = None
        """How much of its time each process spent on what; None before there is a file."""
        self.problem = "the run ended less than two seconds after its first update"
        """Why there is no file."""
        self._run, self._control = run, control
        self._over_s = TRACE_DELAY_S + seconds + SAVE_S

    def tick(self, now_s: float) -> None:
        """Begin once all parts must be there. `now_s` counts as in the roles."""
        first_s = float(self._control.learner["first_updated_s"])
        if first_s and now_s > first_s + self._over_s and self.ident is None:
            self.start()

    def finish(self) -> None:
        """The processes have ended: join what there is."""
        if self.ident is None:
            self.start()
        self.join(END_LIMIT_S)

    def run(self) -> None:
        """Write the file."""
        try:
            self.percent = join_traces(self._run) or None
        except OSError as error:
            self.problem = f"{error.strerror or error}"
