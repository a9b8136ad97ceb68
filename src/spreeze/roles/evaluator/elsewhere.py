"""Evaluations whose episodes another machine of a cluster plays: who asks, and who answers.

The policy and the seed go out on a wire of their own, the episodes come back as a document. The relay carries both;
on the machine that plays, the same two wires stand between its evaluator and its outpost.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from typing import Any

import numpy as np

from spreeze.envs.episodes import Episode
from spreeze.envs.inspect import evaluation_env
from spreeze.envs.targets import NamedEnv
from spreeze.roles.context import Context
from spreeze.roles.env_calls import EnvCallsReader
from spreeze.roles.evaluator.episodes import EpisodePool, Episodes, Player
from spreeze.spec import Floats
from spreeze.store.trace import Activity
from spreeze.wires.documents import EPISODES_PLAYED, Document, TooLong
from spreeze.wires.weights import ASKED, Weights, WeightsReader

POLL_S = 0.02
PATIENCE_S = 600.0
"""Episodes that have not come by then are played here."""

Meanwhile = Callable[[], bool]


class EpisodesElsewhere:
    """Has episodes played on another machine; without one, or without an answer, it plays them here."""

    def __init__(self, ctx: Context, here: EpisodePool) -> None:
        """`here` plays if nobody else does."""
        self._ctx, self._here = ctx, here
        self._asked = Weights(ctx.arena, ASKED)
        self._answer = ctx.document(EPISODES_PLAYED)

    def play(
        self, vector: Floats, seed: int, meanwhile: Meanwhile
    ) -> Generator[None, None, Episodes]:
        """As `EpisodePool.play`."""
        ctx = self._ctx
        if not ctx.control.relay["nodes"]:
            return (yield from self._here.play(vector, seed, meanwhile))
        number, began_s = self._asked.publish(vector, seed, 0), ctx.now()
        while ctx.now() - began_s < PATIENCE_S:
            if self._answer.refresh() and self._answer.value["number"] == number:
                episodes = read_episodes(self._answer.value["episodes"])
                if episodes is not None:
                    return episodes
                break
            if meanwhile():
                break
            ctx.wait(POLL_S)
            yield
        return (yield from self._here.play(vector, seed, meanwhile))


def read_episodes(stored: Any) -> Episodes | None:
    """Episodes of each environment from plain data, which another machine has sent; None if they are none."""
    try:
        return [
            [
                Episode(float(total), int(length), {str(k): float(v) for k, v in info.items()})
                for total, length, info in env
            ]
            for env in stored
        ]
    except (TypeError, ValueError, AttributeError):
        return None


def answer_evaluations(ctx: Context) -> Iterator[None]:
    """The evaluator of another machine: one unit of work is one step, or a look for what is asked."""
    config = ctx.config.evaluator
    envs = ctx.job.evaluation or (NamedEnv("", evaluation_env(ctx.job.env, ctx.spec)),)
    player = Player(tuple(env.target for env in envs), ctx.spec, ctx.make_policy, ctx.env_guard())
    pool, calls = EpisodePool(player, config.episodes), EnvCallsReader(ctx)
    vector = np.zeros(ctx.weights.size, np.float32)
    asked = WeightsReader(Weights(ctx.arena, ASKED), vector)
    answer = ctx.document(EPISODES_PLAYED)
    try:
        while True:
            if not asked.refresh():
                ctx.wait(POLL_S)
                yield
                continue
            ctx.mark(Activity.EVALUATE)
            calls.pass_on(pool.take_calls)
            number, seed = asked.stamp.version, asked.stamp.updates
            episodes = yield from pool.play(vector, seed, lambda: ctx.control.stopping)
            _write(answer, number, episodes)
            yield
    finally:
        pool.close()


def _write(answer: Document, number: int, episodes: Episodes) -> None:
    """Answer with the episodes; with nothing if they are too long."""
    try:
        answer.write({"number": number, "episodes": episodes})
    except TooLong:
        answer.write({"number": number, "episodes": None})
