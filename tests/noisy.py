"""An environment whose log grows by megabytes a second."""

from __future__ import annotations

from spreeze.testing import EnvFault, FaultEnv


class NoisyEnv(FaultEnv):
    """Prints a megabyte in one of three thousand steps of sampler 0."""

    def __init__(self, render_mode: str | None = None) -> None:
        super().__init__(
            fault=EnvFault.PRINT, probability=1 / 3000, role="sampler-0", render_mode=render_mode
        )
