"""Why a knob has its value."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Source(Enum):
    """Where an automatic value comes from."""

    PRESET = "preset"
    """The environment's preset, or the one asked for."""
    MEASURED = "measured"
    """The probe of this machine."""
    RULE = "rule"
    """A rule from the environment's spaces and the machine's cores, memory and devices."""
    GIVEN = "given"
    """It follows from another knob that the user gave."""
    UNUSED = "unused"
    """It changes nothing here, such as what is for images where there are none."""


@dataclass(frozen=True)
class Reason:
    """Why a knob has its value: where it comes from, and one line for people."""

    source: Source
    text: str

    def __str__(self) -> str:
        return self.text
