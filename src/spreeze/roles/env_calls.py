"""The calls into environments that callbacks have asked for, as a role reads them."""

from __future__ import annotations

from collections.abc import Callable

from spreeze.envs.calls import EnvCall
from spreeze.roles.context import Context
from spreeze.wires.documents import ENV_CALLS


class EnvCallsReader:
    """The newest calls for the environments of one role."""

    def __init__(self, ctx: Context) -> None:
        """A process that starts later reads those from before, too."""
        self._document, self._role = ctx.document(ENV_CALLS), ctx.job.role
        self.newest: list[EnvCall] = []

    def pass_on(self, take: Callable[[list[EnvCall]], None]) -> None:
        """Hand them over if there are new ones."""
        if not self._document.refresh():
            return
        calls = [EnvCall(*call) for call in self._document.value.get(self._role, ())]
        if calls != self.newest:
            self.newest = calls
            take(calls)
