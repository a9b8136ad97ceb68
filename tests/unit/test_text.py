"""Numbers and durations as people read them."""

from __future__ import annotations

import pytest

from spreeze.text import clock, plain, plain_lines, short, without_secrets


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "-"),
        (0.0, "0"),
        (0.12345, "0.123"),
        (-7.5, "-7.5"),
        (950, "950"),
        (9_999, "9,999"),
        (12_345, "12.3k"),
        (-4_500_000, "-4.5M"),
        (2e9, "2.0G"),
    ],
)
def test_large_numbers_get_a_unit(value: float | None, text: str) -> None:
    assert short(value) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.4, "0 s"), (42, "42 s"), (60, "1:00"), (185, "3:05"), (3723, "1:02:03")],
)
def test_durations_are_seconds_then_a_clock(seconds: float, text: str) -> None:
    assert clock(seconds) == text


@pytest.mark.fault("S23")
@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ("train Pendulum-v1 --seed 1", "train Pendulum-v1 --seed 1"),
        ("--api-key abc --seed 1", "--api-key ... --seed 1"),
        ("--WANDB_TOKEN=abc x", "--WANDB_TOKEN=... x"),
        ("--env.kwargs password=abc", "--env.kwargs password=..."),
        ("--token --seed 1", "--token --seed 1"),
    ],
)
def test_secrets_of_a_command_line_are_masked(given: str, shown: str) -> None:
    assert " ".join(without_secrets(given.split())) == shown


@pytest.mark.fault("S12")
def test_what_could_steer_a_terminal_is_spelled_out() -> None:
    assert plain("caf\u00e9 \u4e2d") == "caf\u00e9 \u4e2d"
    assert plain("a\x1b[31mb\n\x9b\u202e\udcff") == r"a\x1b[31mb\n\x9b\u202e\udcff"
    assert plain_lines("one\n\ttwo\r") == "one\n        two\\r"
