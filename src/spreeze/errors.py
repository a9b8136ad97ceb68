"""The errors that users see. Imports nothing heavy, so that `--help` and a wrong flag answer at once."""

from __future__ import annotations


class UsageError(ValueError):
    """Wrong input; nothing was started. `problems` has one message for each thing to correct."""

    def __init__(self, problems: list[str]) -> None:
        """Store all problems, so that you can correct them in one go."""
        super().__init__(problems)
        self.problems = problems

    def __str__(self) -> str:
        return "\n".join(self.problems)


class RunFailed(RuntimeError):
    """A run that was started has failed. The message says why, and where to read more."""
