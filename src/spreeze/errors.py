"""The errors that users see. Imports nothing heavy, so that `--help` and a wrong flag answer at once."""

from __future__ import annotations

MAX_CHARS = 2000
"""The most characters of a message about a stored file."""


class UsageError(ValueError):
    """Wrong input; nothing was started. `problems` has one message for each thing to correct."""

    def __init__(self, problems: list[str]) -> None:
        """Store all problems, so that you can correct them in one go."""
        super().__init__(problems)
        self.problems = problems

    def __str__(self) -> str:
        return "\n".join(self.problems)

    def _render_traceback_(self) -> list[str]:
        """What a notebook shows: the lines of our own code say nothing about the mistake."""
        return [f"{type(self).__name__}: {problem}" for problem in self.problems]


class RunFailed(RuntimeError):
    """A run that was started has failed. The message says why, and where to read more."""

    def _render_traceback_(self) -> list[str]:
        """What a notebook shows: the message has the traceback of what went wrong, if there is one."""
        return [f"{type(self).__name__}: {self}"]


class DamagedFile(UsageError):
    """A stored file is damaged, or was made to do harm. Its content was not used."""

    def __init__(self, what: str) -> None:
        """`what`: which file, and what is wrong with it. It becomes one line without control characters."""
        from spreeze.text import plain  # not above: see the comment in spreeze/__init__.py

        super().__init__([plain(what[:MAX_CHARS])])

    def __reduce__(self) -> tuple[type[DamagedFile], tuple[str]]:
        return DamagedFile, (self.problems[0],)


class EnvBroken(RunFailed):
    """An environment failed too often. `newest` is its newest traceback, or what was wrong with its numbers."""

    def __init__(self, why: str, newest: str) -> None:
        """Say why it was given up, and what happened last."""
        super().__init__(why, newest)
        self.why, self.newest = why, newest

    def __str__(self) -> str:
        return f"the environment was given up: {self.why}. What happened last:\n{self.newest}"
