"""TensorBoard event files, written from the metrics of a run."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from spreeze.store.metrics import MetricsReader


class TensorBoard:
    """Copies the metrics of a run into its `tensorboard/` folder, with env steps as the step."""

    def __init__(self, run_path: Path) -> None:
        """Prepare to copy the metrics of the run at `run_path`."""
        self._folder = run_path / "tensorboard"
        self._metrics = MetricsReader(run_path / "metrics")
        self._writer: Any = None
        # Importing tensorboardX takes a while on a busy machine, so the supervisor does not wait for it.
        self._importing = threading.Thread(target=self._open, name="tensorboard", daemon=True)

    def update(self) -> None:
        """Write the new records, once the writer has been imported."""
        if self._importing.ident is None:
            self._importing.start()
        if self._importing.is_alive() or self._writer is None:
            return
        for role, record in self._metrics.read_new():
            suffix = "" if role.endswith("-0") else f"/{role}"
            for name, value in record.items():
                if "/" in name and isinstance(value, int | float):
                    self._writer.add_scalar(name + suffix, value, record["env_steps"])

    def close(self) -> None:
        """Write the remaining records and close the files."""
        if self._importing.ident is None:
            self._importing.start()
        self._importing.join()
        with contextlib.suppress(OSError):
            self.update()
        if self._writer is not None:
            self._writer.close()

    def _open(self) -> None:
        with _without_torch():
            from tensorboardX import SummaryWriter

        with contextlib.suppress(OSError):
            self._writer = SummaryWriter(str(self._folder), flush_secs=10)


@contextlib.contextmanager
def _without_torch() -> Iterator[None]:
    """Hide torch from tensorboardX, which would import it (a second of CPU time) only to accept tensors."""
    if "torch" in sys.modules:
        yield
        return
    sys.modules["torch"] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        del sys.modules["torch"]
