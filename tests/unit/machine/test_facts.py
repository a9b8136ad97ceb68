"""What this machine can do, and what is refused on others."""

from __future__ import annotations

import platform
from pathlib import Path

import pytest

import fakes
import spreeze


@pytest.mark.fault("F32")
def test_a_machine_that_may_reorder_stores_runs_in_one_process_only(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    with pytest.raises(spreeze.UsageError, match=r"this is aarch64\. Use --serial"):
        spreeze.train(fakes.ReachEnv, runs=str(tmp_path))
    assert not list(tmp_path.iterdir())
    assert spreeze.train(fakes.ReachEnv, runs=str(tmp_path), serial=True, steps="200").summary
