"""What a sweep is, and the folder in which it is kept."""

from __future__ import annotations

import dataclasses
import fcntl
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from spreeze.cli.sweep.score import Score
from spreeze.errors import DamagedFile, UsageError
from spreeze.store.files import read_json, write_atomic
from spreeze.text import plain

FILE = "sweep.json"
"""What is asked for, and all trials; for programs that read a sweep, such as the page."""
CODE = re.compile(r"""(--[\w.-]+=)?[^{}\s"]*:[^\W\d]\w*""")
"""A word that names code: `file.py:MyEnv`, also after a flag. `cuda:0` and JSON are none."""


@dataclass(frozen=True)
class Plan:
    """What decides the trials of a sweep, apart from their number."""

    arguments: tuple[str, ...]
    """What follows `spreeze train` in all trials."""
    space: str
    """The text of the space file."""
    score: str
    metric: str
    pruner: str
    search: str

    @property
    def scoring(self) -> Score:
        """What counts."""
        return Score(self.score, self.metric)

    @classmethod
    def read(cls, folder: Path) -> tuple[Plan, int]:
        """The plan in a sweep's folder and the number of its trials; UsageError without one."""
        try:
            stored = read_json(folder, FILE)
        except FileNotFoundError:
            raise UsageError([f"{folder} is no sweep: it has no {FILE}."]) from None
        asked, trials = stored.get("asked"), stored.get("trials")
        names = [known.name for known in dataclasses.fields(cls)]
        if not (isinstance(asked, dict) and asked.keys() == set(names) and type(trials) is int):
            raise DamagedFile(f"{folder / FILE} does not say what was asked for.")
        words = asked.pop("arguments")
        values = [*words, *asked.values()] if isinstance(words, list) else [None]
        if not all(isinstance(value, str) for value in values):
            raise DamagedFile(
                f"{folder / FILE} has something else than text in what was asked for."
            )
        return cls(tuple(words), **asked), trials

    def write(self, folder: Path, trials: int, state: dict[str, Any]) -> None:
        """Write what was asked for, and how far it is."""
        write_atomic(folder / FILE, {"asked": dataclasses.asdict(self), "trials": trials, **state})

    def code_named(self) -> str | None:
        """A word that names code of the user; a stored sweep never chooses code to import."""
        return next((word for word in self.arguments if CODE.fullmatch(word)), None)


@contextmanager
def sweep_folder(folder: Path, plan: Plan) -> Iterator[None]:
    """Make the folder of a sweep, or continue the one that is there, if it is the same one."""
    if folder.exists():
        stored, _ = Plan.read(folder)
        names = {"arguments": "flags of the trials", "space": "space"}
        other = [
            names.get(name, f"--{name}")
            for name, value in dataclasses.asdict(plan).items()
            if value != getattr(stored, name)
        ]
        if other:
            raise UsageError(
                [
                    f"sweep {folder} exists, with other values of: {plain(', '.join(other))}. "
                    f"Give another --name, or continue it: spreeze sweep --resume {folder}"
                ]
            )
    folder.mkdir(parents=True, exist_ok=True)
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UsageError([f"sweep {folder} is going on in another process."]) from None
        yield
    finally:
        os.close(fd)
