"""Logs of bounded size."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from spreeze.store import logs
from spreeze.store.logs import KEPT_BYTES, LOG_BYTES, cut_logs, open_log


@pytest.mark.fault("F48")
def test_only_long_logs_are_cut_and_their_end_is_kept(tmp_path: Path) -> None:
    (tmp_path / "learner-0.log").write_bytes(b"a" * LOG_BYTES)
    (tmp_path / "compiler.log").write_bytes(b"b" * LOG_BYTES + b"the end")
    assert cut_logs(tmp_path) == (1, 0)
    assert (tmp_path / "learner-0.log").stat().st_size == LOG_BYTES
    assert (tmp_path / "compiler.log").read_bytes() == b""
    kept = (tmp_path / "compiler.log.1").read_bytes()
    assert len(kept) == KEPT_BYTES
    assert kept.endswith(b"bbb" + b"the end")
    assert cut_logs(tmp_path) == (0, 0)


@pytest.mark.fault("F48")
def test_on_a_full_disk_a_log_is_cut_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: Path, __: bytes) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(logs, "replace_bytes", full)
    (tmp_path / "learner-0.log").write_bytes(b"a" * (LOG_BYTES + 1))
    assert cut_logs(tmp_path) == (1, 1)
    assert (tmp_path / "learner-0.log").read_bytes() == b""


@pytest.mark.fault("F48")
@pytest.mark.parametrize(
    ("harm", "at_least"),
    [
        ("[os.dup2(os.open('/dev/full', os.O_WRONLY), fd) for fd in (1, 2)]", 2),
        ("os.close(1), os.close(2)", 2),
        ("sys.stdout.close(), sys.stderr.close()", 0),  # nothing is lost: the files stay open
    ],
)
def test_prints_that_fail_are_counted_and_never_raise(harm: str, at_least: int) -> None:
    """On a full disk, or after an environment has closed the stream."""
    script = f"""
import os, sys
from spreeze.store.logs import count_lost_prints, forgive_failed_prints
forgive_failed_prints()
lost = []
count_lost_prints(lambda: lost.append(1), None)
{harm}
print("x" * 100_000, flush=True)
print("y", file=sys.stderr, flush=True)
sys.exit(bool(lost) != {bool(at_least)} or len(lost) < {at_least})
"""
    ended = subprocess.run(
        [sys.executable, "-c", script], timeout=60, check=False, capture_output=True
    )
    assert ended.returncode == 0


@pytest.mark.fault("F65")
def test_prints_do_not_wait_for_a_disk_that_hangs_and_are_written_when_it_answers() -> None:
    done, tell_done = os.pipe()
    script = f"""
import os, sys
from spreeze.store.logs import count_lost_prints, forgive_failed_prints
from spreeze.store.write_thread import WriteThread
forgive_failed_prints()
thread = WriteThread("writes", lambda: None)
thread.start()
count_lost_prints(lambda: None, thread)
print("first", flush=True)
for _ in range(5):
    print("x" * 30_000, flush=True)  # more than the pipe takes
print("and an error", file=sys.stderr)
os.write({tell_done}, b"x")
thread.close(60)
"""
    reading, writing = os.pipe()
    program = subprocess.Popen(
        [sys.executable, "-c", script], stdout=writing, stderr=writing, pass_fds=[tell_done]
    )
    os.close(writing)
    os.close(tell_done)
    with program, open(reading, "rb") as pipe:
        assert os.read(done, 1) == b"x", "it has printed everything"
        os.close(done)
        assert pipe.read() == b"first\n" + 5 * (b"x" * 30_000 + b"\n") + b"and an error\n"
    assert program.returncode == 0


def test_a_log_that_cannot_be_opened_goes_nowhere(tmp_path: Path) -> None:
    (tmp_path / "logs").write_text("a file where the folder should be")
    with open_log(tmp_path / "logs" / "sampler-0.log") as log:
        log.write(b"lost")
