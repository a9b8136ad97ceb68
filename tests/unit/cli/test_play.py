"""`spreeze play`: wrong flags are refused before anything is loaded; episodes and seconds are counted."""

from __future__ import annotations

from typing import Any

import pytest

from spreeze.cli.commands.play import Arguments, _num_pictures, _play, main
from spreeze.errors import UsageError


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--video", "a.avi"], "name it a.mp4"),
        (["--video", "/nowhere/a.mp4"], "there is no folder /nowhere"),
        ([], "Use --video FILE.mp4"),
        (["--episodes", "0", "--video", "a.mp4"], "from 1 to 1000"),
        (["--seconds", "0", "--video", "a.mp4"], "from 0.1 to 3600"),
        (["--size", "640", "--video", "a.mp4"], "such as 640x480"),
        (["--size", "9999x10", "--video", "a.mp4"], "from 64 to 4096"),
        (["--size", "640x480"], "Name one, too: --video FILE.mp4"),
    ],
)
def test_wrong_flags_are_refused(
    monkeypatch: pytest.MonkeyPatch, arguments: list[str], words: str
) -> None:
    monkeypatch.delenv("DISPLAY", raising=False)
    monkeypatch.delenv("WAYLAND_DISPLAY", raising=False)
    with pytest.raises(UsageError, match=words):
        main(arguments, 0.0)


class FiveSteps:
    """A view whose episodes take five steps of a tenth of a second, each with a reward of 1."""

    steps_hz = 10.0

    def reset(self, seed: int) -> None:
        self.total, self.ended = 0.0, False

    def step(self, _act: Any) -> None:
        self.total += 1
        self.ended = self.total == 5


class Five:
    """A policy that knows the time limit."""

    greedy_action = None

    class spec:
        max_episode_steps = 5


@pytest.mark.parametrize(
    ("flags", "returns", "most"),
    [
        ({}, ["5.0"], 5),
        ({"episodes": 2}, ["5.0", "5.0"], 10),
        ({"seconds": 0.8}, ["5.0", "3.0 when the time was up"], 8),
        ({"seconds": 0.8, "episodes": 1}, ["5.0"], 5),
        ({"seconds": 0.2, "episodes": 3}, ["2.0 when the time was up"], 2),
        ({"seconds": 0.1}, ["1.0 when the time was up"], 1),
    ],
)
def test_episodes_and_seconds_bound_what_is_played(
    flags: dict[str, Any], returns: list[str], most: int
) -> None:
    args, view, policy = Arguments(**flags), FiveSteps(), Five()
    steps: list[int] = []
    played = _play(args, view, policy, lambda: steps.append(1))  # type: ignore[arg-type]
    assert [str(episode) for episode in played] == returns
    assert len(steps) == sum(episode.total for episode in played)
    assert _num_pictures(args, view, policy) == most  # type: ignore[arg-type]
