"""`spreeze play`: wrong flags are refused before anything is loaded."""

from __future__ import annotations

import pytest

from spreeze.cli.commands.play import main
from spreeze.errors import UsageError


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--video", "a.avi"], "name it a.mp4"),
        (["--video", "/nowhere/a.mp4"], "there is no folder /nowhere"),
        ([], "Use --video FILE.mp4"),
        (["--episodes", "0", "--video", "a.mp4"], "from 1 to 1000"),
    ],
)
def test_wrong_flags_are_refused(
    monkeypatch: pytest.MonkeyPatch, arguments: list[str], words: str
) -> None:
    monkeypatch.delenv("DISPLAY", raising=False)
    monkeypatch.delenv("WAYLAND_DISPLAY", raising=False)
    with pytest.raises(UsageError, match=words):
        main(arguments, 0.0)
