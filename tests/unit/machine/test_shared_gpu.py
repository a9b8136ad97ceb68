"""The service by which processes share a GPU: a stand-in writes down how it is called."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from spreeze.machine import shared_gpu
from spreeze.machine.shared_gpu import FOLDER, PROGRAM, SharedGpu

STAND_IN = """#!/bin/sh
if [ "$1" = -d ]; then
  echo "begin $CUDA_VISIBLE_DEVICES" >> {calls}
  touch "$CUDA_MPS_PIPE_DIRECTORY/control"
else
  read -r words
  test -e "$CUDA_MPS_PIPE_DIRECTORY/control" && echo "$words" >> {calls}
fi
"""


@pytest.fixture
def calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What the service was told, line by line."""
    calls = tmp_path / "calls"
    program = tmp_path / "bin" / PROGRAM
    program.parent.mkdir()
    program.write_text(STAND_IN.format(calls=calls))
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    monkeypatch.delenv(FOLDER, raising=False)
    monkeypatch.setattr(shared_gpu, "USUAL_FOLDER", tmp_path / "none")
    return calls


def await_end(calls: Path, folder: Path) -> None:
    end_s = time.monotonic() + 20
    while not (calls.read_text().endswith("quit -t 1\n") and not folder.exists()):
        assert time.monotonic() < end_s, calls.read_text()
        time.sleep(0.02)


def test_it_serves_all_gpus_until_it_is_closed(calls: Path) -> None:
    gpu = SharedGpu(True, ["test", "-e", "/proc/self"])
    folder = gpu.folder
    assert folder is not None
    assert (folder / "control").exists()
    assert calls.read_text() == "begin \n", "clients choose among the devices, not the service"
    gpu.close()
    gpu.close()
    assert gpu.folder is None
    await_end(calls, folder)


def test_it_ends_when_the_run_is_killed(calls: Path) -> None:
    code = (
        "import time; from spreeze.machine.shared_gpu import SharedGpu\n"
        "gpu = SharedGpu(True, ['true']); print(gpu.folder, flush=True); time.sleep(60)"
    )
    run = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert run.stdout is not None
    with run, run.stdout:
        folder = Path(run.stdout.readline().strip())
        assert (folder / "control").exists()
        run.send_signal(signal.SIGKILL)
    await_end(calls, folder)


def test_a_service_that_does_not_begin_leaves_nothing(
    calls: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "bin" / PROGRAM).write_text("#!/bin/sh\nexit 1\n")
    monkeypatch.setenv("TMPDIR", str(tmp_path / "scratch"))
    monkeypatch.setattr("tempfile.tempdir", None)
    (tmp_path / "scratch").mkdir()
    assert SharedGpu(True, ["true"]).folder is None
    assert not list((tmp_path / "scratch").iterdir())
    assert not calls.exists()


def test_a_service_that_nobody_can_work_with_is_ended(calls: Path) -> None:
    assert SharedGpu(True, ["false"]).folder is None
    end_s = time.monotonic() + 20
    while "quit" not in calls.read_text():
        assert time.monotonic() < end_s
        time.sleep(0.02)


@pytest.mark.parametrize("why", ["running", "named", "missing", "not wanted"])
def test_none_is_started_where_there_is_one_or_cannot_be_one(
    why: str, calls: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if why == "running":
        (tmp_path / "none").mkdir()
        (tmp_path / "none" / "control").touch()
    elif why == "named":
        monkeypatch.setenv(FOLDER, str(tmp_path))
    elif why == "missing":
        monkeypatch.setenv("PATH", "/usr/bin:/bin")
    assert SharedGpu(why != "not wanted", ["true"]).folder is None
    assert not calls.exists()
