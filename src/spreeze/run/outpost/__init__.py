"""An outpost: samplers on another machine of a cluster, in the processes and on the lanes that they always have.

It is called from the learner's machine (`roles.relay`) and knows nothing of what carries the calls. Its samplers
never wait for the network: they write to their lanes, which overwrite the oldest rows if nobody asks for them.

    hello  ──▶ versions
    join   ──▶ None, or why it may not
    take   ──▶ a block of rows, when there is a megabyte or after a fifth of a second; over and over
"""

from __future__ import annotations

from collections.abc import Mapping

from spreeze.errors import UsageError
from spreeze.roles.relay.messages import Invitation, Orders, Report, versions
from spreeze.run.outpost.silence import Silence
from spreeze.run.outpost.site import Site
from spreeze.run.processes.call import CallFailed
from spreeze.spec import Floats
from spreeze.user_code import allow


class Outpost:
    """The samplers of one machine, and their end of the conversation."""

    def __init__(self) -> None:
        """Nothing runs yet."""
        self._site: Site | None = None
        self._silence = Silence()

    def hello(self, user_code: Mapping[str, str]) -> dict[str, str]:
        """What runs here. `user_code`: the user's own modules, and the folders where they are."""
        allow(user_code)
        return versions()

    def join(self, invitation: Invitation) -> str | None:
        """Start to sample; returns why that is not possible, if it is not."""
        with self._silence.paused():
            try:
                self._site = Site(invitation)
            except UsageError as error:
                return str(error)
            except CallFailed as error:
                return f"the environment failed when it was tried out there: {error}"
        self._silence.limit_s = invitation.config.ray.grace_s
        return None

    def take(self, orders: Orders, policy: Floats | None, to_play: Floats | None = None) -> Report:
        """Follow the orders, and return a block of rows as soon as there is a large one.

        `policy`: the newest; `to_play`: the one that is to be evaluated.
        """
        assert self._site is not None
        self._silence.broken()
        try:
            return self._site.take(orders, policy, to_play)
        finally:
            self._silence.broken()

    def leave(self) -> None:
        """Stop all samplers; nothing more will be asked."""
        if self._site is not None:
            self._site.close()
            self._site = None
        self._silence.end()
