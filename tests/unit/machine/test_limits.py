"""The limits of the process: named with numbers, before anything starts."""

from __future__ import annotations

import resource

import pytest

from spreeze.machine import limits
from spreeze.machine.limits import limit_problems

GIB = 1 << 30


def set_limits(patch: pytest.MonkeyPatch, **values: int) -> None:
    """Limits by name, such as NOFILE; all others are infinite."""
    by_number = {getattr(resource, f"RLIMIT_{name}"): value for name, value in values.items()}
    patch.setattr(
        resource, "getrlimit", lambda number: (by_number.get(number, resource.RLIM_INFINITY), -1)
    )


@pytest.mark.fault("F74")
@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({}, []),
        ({"NOFILE": 256, "AS": 4 * GIB}, []),
        ({"NOFILE": 60}, ["opens up to 70 files, and the limit is 60", "ulimit -n 1024"]),
        ({"AS": GIB}, ["needs 2.0 GiB of address space, and the limit is 1.0", "ulimit -v"]),
        ({"NPROC": 120}, ["about 30 threads beside the 100", "the limit is 120", "ulimit -u 130"]),
        ({"NPROC": 130}, []),
    ],
)
def test_a_limit_that_is_too_low_is_named(
    monkeypatch: pytest.MonkeyPatch, values: dict[str, int], said: list[str]
) -> None:
    set_limits(monkeypatch, **values)
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    monkeypatch.setattr(limits, "_threads_of_user", lambda: 100)
    problems = list(limit_problems(10, 2 * GIB))
    assert len(problems) == bool(said)
    assert all(words in problems[0] for words in said)


@pytest.mark.fault("F74")
def test_root_may_have_any_number_of_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    set_limits(monkeypatch, NPROC=1)
    monkeypatch.setattr("os.geteuid", lambda: 0)
    assert not list(limit_problems(10, 0))


def test_the_threads_of_this_user_are_counted() -> None:
    assert limits._threads_of_user() >= 1
