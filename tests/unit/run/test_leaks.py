"""Which processes count as leaking."""

from __future__ import annotations

import os

import pytest

from spreeze.run.leaks import SETTLED_S, LeakWatch, private_bytes

MB = 1 << 20


@pytest.fixture
def watch() -> LeakWatch:
    """Process 1 has started with 100 MB; the limit is 500 MB."""
    watch = LeakWatch(500 * MB)
    assert watch.look({1: 20 * MB}, 0.0) == []
    assert watch.look({1: 100 * MB}, SETTLED_S) == []
    return watch


def test_a_process_that_has_grown_beyond_limit_and_usual_need_leaks(watch: LeakWatch) -> None:
    assert watch.look({1: 501 * MB}, 60.0) == [1]


def test_growth_below_the_limit_is_no_leak(watch: LeakWatch) -> None:
    assert watch.look({1: 499 * MB}, 60.0) == []


def test_a_process_that_always_needs_much_does_not_leak(watch: LeakWatch) -> None:
    assert watch.look({1: 100 * MB, 2: 900 * MB}, 60.0) == []
    assert watch.look({1: 100 * MB, 2: 900 * MB}, 60.0 + SETTLED_S) == []
    assert watch.look({1: 100 * MB, 2: 1700 * MB}, 90.0) == []
    assert watch.look({1: 100 * MB, 2: 1900 * MB}, 90.0) == [2]


def test_its_successor_starts_afresh(watch: LeakWatch) -> None:
    assert watch.look({}, 60.0) == []
    assert watch.look({1: 600 * MB}, 61.0) == []


def test_memory_of_a_process_and_of_one_that_is_gone() -> None:
    used = private_bytes(os.getpid())
    assert used is not None
    assert used > MB
    assert private_bytes(2**22 + 1) is None
