"""Limits of containers and services, in made-up trees of control groups."""

from __future__ import annotations

from pathlib import Path

import pytest

from spreeze.machine.cgroups import core_limit, free_memory

GIB = 1 << 30


def tree(system: Path, own: str, files: dict[str, str]) -> Path:
    """A system whose /proc/self/cgroup says `own`, with these files under /sys/fs/cgroup."""
    for name, text in {"proc/self/cgroup": own}.items():
        (system / name).parent.mkdir(parents=True)
        (system / name).write_text(text)
    for name, text in files.items():
        path = system / "sys/fs/cgroup" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return system


def memory2(group: str, limit: str, used: int, cached: int = 0) -> dict[str, str]:
    stat = f"anon 1\ninactive_file {cached}\n"
    return {
        f"{group}/memory.max": limit,
        f"{group}/memory.current": str(used),
        f"{group}/memory.stat": stat,
    }


def memory1(group: str, limit: int, used: int, cached: int = 0) -> dict[str, str]:
    stat = f"inactive_file 7\ntotal_inactive_file {cached}\n"
    return {
        f"{group}/memory.limit_in_bytes": str(limit),
        f"{group}/memory.usage_in_bytes": str(used),
        f"{group}/memory.stat": stat,
    }


@pytest.mark.fault("F60")
@pytest.mark.parametrize(
    ("files", "cores"),
    [
        ({"a/b/cpu.max": "max 100000\n", "cpu.max": "max 100000\n"}, None),
        ({"a/b/cpu.max": "200000 100000\n"}, 2.0),
        ({"a/b/cpu.max": "800000 100000\n", "a/cpu.max": "150000 100000\n"}, 1.5),
        ({"a/b/cpu.max": "max 100000\n", "cpu.max": "300000 100000\n"}, 3.0),
        ({"a/other/cpu.max": "100000 100000\n"}, None),
        ({"a/b/cpu.max": "nonsense\n"}, None),
        ({}, None),
    ],
)
def test_the_smallest_cpu_limit_from_here_to_the_root_counts(
    tmp_path: Path, files: dict[str, str], cores: float | None
) -> None:
    assert core_limit(tree(tmp_path, "0::/a/b\n", files)) == cores


@pytest.mark.fault("F60")
@pytest.mark.parametrize("mount", ["cpu", "cpu,cpuacct"])
def test_cpu_limits_of_version_1(tmp_path: Path, mount: str) -> None:
    own = "5:memory:/x\n4:cpu,cpuacct:/docker/abc\n0::/\n"
    files = {
        f"{mount}/docker/abc/cpu.cfs_quota_us": "-1\n",
        f"{mount}/docker/abc/cpu.cfs_period_us": "100000\n",
        f"{mount}/docker/cpu.cfs_quota_us": "400000\n",
        f"{mount}/docker/cpu.cfs_period_us": "100000\n",
        f"{mount}/x/cpu.cfs_quota_us": "100000\n",
        f"{mount}/x/cpu.cfs_period_us": "100000\n",
    }
    assert core_limit(tree(tmp_path, own, files)) == 4.0


@pytest.mark.fault("F23")
@pytest.mark.parametrize(
    ("files", "free"),
    [
        (memory2("a/b", "max", GIB), None),
        (memory2("a/b", str(4 * GIB), GIB), 3 * GIB),
        (memory2("a/b", str(4 * GIB), 3 * GIB, cached=2 * GIB), 3 * GIB),
        (memory2("a/b", "max", GIB) | memory2("a", str(2 * GIB), GIB), GIB),
        (memory2("a/b", str(8 * GIB), 0) | memory2(".", str(2 * GIB), 0), 2 * GIB),
    ],
)
def test_the_least_free_memory_from_here_to_the_root_counts(
    tmp_path: Path, files: dict[str, str], free: int | None
) -> None:
    assert free_memory(tree(tmp_path, "0::/a/b\n", files)) == free


@pytest.mark.fault("F23")
def test_memory_limits_of_version_1(tmp_path: Path) -> None:
    files = memory1("memory/docker/abc", 4 * GIB, 2 * GIB, cached=GIB)
    files |= memory1("memory", 0x7FFFFFFFFFFFF000, 9 * GIB)
    system = tree(tmp_path, "9:name=systemd:/\n4:memory:/docker/abc\n0::/\n", files)
    assert free_memory(system) == 3 * GIB


@pytest.mark.fault("F60")
def test_in_a_container_the_path_may_be_that_of_the_host(tmp_path: Path) -> None:
    files = {"cpu.max": "200000 100000\n", **memory2(".", str(2 * GIB), GIB)}
    system = tree(tmp_path, "0::/../kubepods/pod1/abc\n", files)
    assert core_limit(system) == 2.0
    assert free_memory(system) == GIB


def test_without_control_groups_there_is_no_limit(tmp_path: Path) -> None:
    assert core_limit(tmp_path) is None
    assert free_memory(tmp_path) is None
