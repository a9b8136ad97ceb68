"""How often the kernel has ended a process, read from the files of a control group."""

from __future__ import annotations

from pathlib import Path

import pytest

from spreeze.machine.oom import oom_kills

pytestmark = pytest.mark.fault("F71")


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


@pytest.mark.parametrize(
    ("cgroup", "file", "text"),
    [
        ("0::/user/run\n", "user/run/memory.events", "low 0\noom 4\noom_kill 3\n"),
        ("0::/\n", "memory.events", "oom_kill 3\noom_group_kill 0\n"),
        ("0::/path/on/the/host\n", "memory.events", "oom_kill 3\n"),
        (
            "4:memory:/job\n0::/\n",
            "memory/job/memory.oom_control",
            "oom_kill_disable 0\nunder_oom 0\noom_kill 3\n",
        ),
    ],
)
def test_kills_are_counted_in_both_versions_of_control_groups(
    tmp_path: Path, cgroup: str, file: str, text: str
) -> None:
    write(tmp_path / "proc" / "self" / "cgroup", cgroup)
    write(tmp_path / "groups" / file, text)
    assert oom_kills(tmp_path / "proc", tmp_path / "groups") == 3


def test_without_such_files_nothing_is_counted(tmp_path: Path) -> None:
    assert oom_kills(tmp_path, tmp_path) == 0
    write(tmp_path / "self" / "cgroup", "0::/\n")
    assert oom_kills(tmp_path, tmp_path) == 0
