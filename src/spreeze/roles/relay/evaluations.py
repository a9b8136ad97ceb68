"""Hands evaluations to outposts, and their episodes back."""

from __future__ import annotations

from typing import Any

import numpy as np

from spreeze.roles.context import Context
from spreeze.roles.relay.fleet import Cluster, Fleet, Post, State
from spreeze.roles.relay.messages import Asked
from spreeze.wires.documents import EPISODES_PLAYED, TooLong
from spreeze.wires.weights import ASKED, Weights, WeightsReader


class Evaluations:
    """One evaluation at a time: which outpost has it."""

    def __init__(self, ctx: Context, cluster: Cluster, fleet: Fleet) -> None:
        """Nothing is asked yet."""
        self._cluster, self._fleet = cluster, fleet
        self._vector = np.zeros(ctx.weights.size, np.float32)
        self._asked = WeightsReader(Weights(ctx.arena, ASKED), self._vector)
        self._answer = ctx.document(EPISODES_PLAYED)
        self.num_played = 0
        self._open = False
        self._policy: Any = None
        self._post: Post | None = None

    def look(self) -> None:
        """Take a new question; one whose outpost has left goes to another, or back."""
        if self._asked.refresh():
            self._open, self._post = True, None
            self._policy = self._cluster.put(self._vector.copy())
        if self._open and (self._post is None or self._post.state is not State.SAMPLING):
            sampling = self._fleet.sampling
            number = self._asked.stamp.version
            self._post = sampling[number % len(sampling)] if sampling else None
            if self._post is None:
                self._close(None)
            else:
                self._post.evaluation_sent = 0

    def question(self, post: Post) -> tuple[Asked | None, Any]:
        """What this outpost is to evaluate, if it is its turn and it does not know yet."""
        stamp = self._asked.stamp
        if not self._open or post is not self._post or post.evaluation_sent == stamp.version:
            return None, None
        post.evaluation_sent = stamp.version
        return Asked(stamp.version, stamp.updates), self._policy

    def take(self, played: Any) -> None:
        """An outpost has answered; answers to older questions are late."""
        if not (isinstance(played, tuple) and len(played) == 2):
            return
        number, episodes = played
        if self._open and number == self._asked.stamp.version:
            self.num_played += 1
            self._close(episodes)

    def _close(self, episodes: Any) -> None:
        number, self._open, self._policy = self._asked.stamp.version, False, None
        try:
            self._answer.write({"number": number, "episodes": episodes})
        except (TooLong, TypeError, ValueError):  # not what was asked for
            self._answer.write({"number": number, "episodes": None})
