"""TensorBoard, mirrored from the metrics of a run."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from spreeze.store.metrics import Follower


class TensorBoard:
    """Mirrors the metrics of a run into its `tensorboard/` folder, over env steps."""

    def __init__(self, run_path: Path) -> None:
        """Mirror the run at `run_path`."""
        self._folder = run_path / "tensorboard"
        self._follower = Follower(run_path / "metrics")
        self._writer: Any = None
        # Its import takes a moment on a busy machine: not while the supervisor is needed.
        self._importing = threading.Thread(target=self._open, name="tensorboard", daemon=True)

    def update(self) -> None:
        """Write what is new, if the writer is there by now."""
        if self._importing.ident is None:
            self._importing.start()
        if self._importing.is_alive() or self._writer is None:
            return
        for role, record in self._follower.new():
            suffix = "" if role.endswith("-0") else f"/{role}"
            for name, value in record.items():
                if "/" in name and isinstance(value, int | float):
                    self._writer.add_scalar(name + suffix, value, record["env_steps"])

    def close(self) -> None:
        """Write the rest."""
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
    """Import as if it were not installed: tensorboardX would load it, a second of a core, just to know its tensors."""
    if "torch" in sys.modules:
        yield
        return
    sys.modules["torch"] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        del sys.modules["torch"]
