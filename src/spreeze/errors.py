"""What a user has to know of; without numpy, so that --help and a wrong flag answer at once."""

from __future__ import annotations


class UsageError(ValueError):
    """Wrong input; nothing was started. `problems` has a line for each thing to mend."""

    def __init__(self, problems: list[str]) -> None:
        """Keep all problems."""
        super().__init__(problems)
        self.problems = problems

    def __str__(self) -> str:
        return "\n".join(self.problems)


class RunFailed(RuntimeError):
    """What was started ended by an error; the message holds its cause and where to read more."""
