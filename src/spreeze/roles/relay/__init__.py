"""Relay: moves experience from the other machines of a cluster into the run, and policies to them.

It asks outposts for blocks of rows and writes them to the lane of arrivals; each call takes along how far
samplers may go, and the newest policy. At most `fleet.IN_FLIGHT` calls per outpost are under way, so a slow
learner or network holds up nothing but the outposts' own lanes, which overwrite their oldest rows.

Reads: weights, control.   Writes: the lane of arrivals, its control counters, metrics, what it says about nodes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from spreeze.roles.context import Context
from spreeze.roles.pacing import LimitForecast
from spreeze.roles.relay.evaluations import Evaluations
from spreeze.roles.relay.fleet import Cluster, Fleet, Node, Post, State
from spreeze.roles.relay.lag import PolicyAges
from spreeze.roles.relay.messages import MIRRORED, Invitation, Orders
from spreeze.store.metrics import record_interval
from spreeze.wires.blocks import find_problem, unpack
from spreeze.wires.documents import CLUSTER, ENV_CALLS
from spreeze.wires.weights import WeightsReader

LOOK_EVERY_S, TELL_EVERY_S, LOG_EVERY_S = 1.0, 0.5, 2.0
WAIT_S = 0.02
AHEAD_S = 0.5
"""About as much later outposts follow their orders."""
PUT_EVERY_S = 0.05
"""A policy is put into the object store at most this often; outposts take the newest."""


def run(ctx: Context) -> Iterator[None]:
    """One unit of work: send orders, take the blocks that have come."""
    from spreeze.roles.relay.ray_cluster import RayCluster

    relay = Relay(ctx, RayCluster(ctx.config.ray, folder=ctx.job.scratch))
    try:
        while True:
            relay.work(WAIT_S)
            yield
    finally:
        relay.close()


class Relay:
    """The relay of one run."""

    def __init__(self, ctx: Context, cluster: Cluster) -> None:
        """No outpost yet."""
        assert ctx.arrivals is not None
        self._ctx, self._cluster, self._counters = ctx, cluster, ctx.counters
        self._fleet = Fleet(
            cluster, self._invite, self._say, machines=int(self._counters["outposts"])
        )
        self._lane = ctx.arrivals.writer(0)
        self._vector = np.zeros(ctx.weights.size, np.float32)
        self._policy = WeightsReader(ctx.weights, self._vector)
        self._put: Any = None
        self._ages = PolicyAges(ctx.config.ray.max_lag_s)
        self._env_calls, self._calls_number = ctx.document(ENV_CALLS), 0
        self._limit = LimitForecast(AHEAD_S)
        nodes_play = ctx.config.ray.evaluate == "nodes"
        self._evaluations = Evaluations(ctx, cluster, self._fleet) if nodes_play else None
        self._told = ctx.document(CLUSTER)
        self._events: list[str] = []
        self._num_events = 0
        self._next_look_s = self._next_put_s = self._next_tell_s = self._next_log_s = 0.0
        # A relay before this one may have been killed: counts go on.
        words = ("env_steps", "episodes", "rows_lost", "nodes_lost", "nodes_refused")
        self._before = {word: int(self._counters[word]) for word in words}

    def work(self, timeout_s: float) -> None:
        """One round; waits up to `timeout_s` for a block."""
        ctx, fleet = self._ctx, self._fleet
        self._ages.see(ctx.weights.version, ctx.now())
        self._take_policy()
        if self._env_calls.refresh():
            self._calls_number += 1
        if ctx.now() >= self._next_look_s:
            self._next_look_s = ctx.now() + LOOK_EVERY_S
            fleet.look_for_nodes()
        if self._evaluations:
            self._evaluations.look()
        fleet.send(self._orders)
        for post, report, took_s in fleet.receive(timeout_s):
            for note in report.notes:
                self._say(f"{post.node.name}: {note}")
            if self._evaluations and report.played is not None:
                self._evaluations.take(report.played)
            if report.block is not None:
                self._take(post, report.block)
                self._counters["block_ms"] = 1000 * took_s
        self._count()
        self._tell_if_due()
        self._log_if_due()

    def close(self) -> None:
        """End all outposts."""
        self._fleet.close()

    def _take_policy(self) -> None:
        """Put the newest policy where outposts find it."""
        if self._ctx.now() >= self._next_put_s and self._policy.refresh():
            self._next_put_s = self._ctx.now() + PUT_EVERY_S
            self._put = self._cluster.put(self._vector.copy())

    def _orders(self, post: Post) -> tuple[Orders, Any, Any]:
        control = self._ctx.control
        values = {word: float(getattr(control, table)[word]) for table, word in MIRRORED}
        values["allowed_steps"] = self._limit.of(int(values["allowed_steps"]), self._ctx.now())
        words = tuple(values.values())
        elsewhere = control.env_steps - post.report.env_steps
        version, calls, policy = self._policy.stamp.version, None, None
        if post.calls_sent < self._calls_number:
            post.calls_sent, calls = self._calls_number, self._env_calls.value
        if post.weights_sent < version:
            post.weights_sent, policy = version, self._put
        asked, to_play = self._evaluations.question(post) if self._evaluations else (None, None)
        return Orders(words, elsewhere, version, calls, asked), policy, to_play

    def _take(self, post: Post, block: Any) -> None:
        """Check a block, and write its rows into the lane of arrivals."""
        counters = self._counters
        if (problem := find_problem(block, self._ctx.layout)) is not None:
            num = len(block[0]) if isinstance(block, tuple) and block and np.ndim(block[0]) else 1
            counters["rows_refused"] += num
            self._say(f"a block of {post.node.name} was dropped: {problem}")
            return
        if self._ages.too_old(block[-1], self._ctx.now()):
            counters["rows_late"] += len(block[0])
            return
        num_rows = unpack(block, self._lane.reserve())
        self._lane.commit(num_rows)
        counters["rows"] += num_rows
        counters["blocks"] += 1

    def _invite(self, node: Node, machine: int) -> Invitation:
        ctx, job = self._ctx, self._ctx.job
        return Invitation(
            config=job.config,
            spec=job.spec,
            env=job.env,
            evaluation=job.evaluation,
            fields=ctx.layout.fields,
            policy_size=ctx.weights.size,
            machine=machine,
            cpus=node.cpus,
            elapsed_s=ctx.now(),
            resumed_steps=int(ctx.control.supervisor["resumed_steps"]),
            env_steps=ctx.control.env_steps,
            form=job.form,
            scratch=job.scratch,
        )

    def _say(self, what: str) -> None:
        self._ctx.note(what)
        self._events, self._num_events = [*self._events, what[:1000]][-20:], self._num_events + 1

    def _count(self) -> None:
        """Bring the words on the control wire up to date."""
        fleet, counters, before = self._fleet, self._counters, self._before
        counters["outposts"] = fleet.machines
        counters["env_steps"] = before["env_steps"] + fleet.env_steps
        counters["episodes"] = before["episodes"] + fleet.episodes
        counters["rows_lost"] = before["rows_lost"] + fleet.rows_lost
        counters["nodes_lost"] = before["nodes_lost"] + fleet.num_lost
        counters["nodes_refused"] = before["nodes_refused"] + fleet.num_refused
        counters["blocks_lost"] = fleet.blocks_lost
        sampling = fleet.sampling
        counters["nodes"] = len(sampling)
        counters["evaluations"] = self._evaluations.num_played if self._evaluations else 0
        counters["samplers"] = sum(post.report.samplers for post in sampling)
        counters["in_flight"] = fleet.num_in_flight
        versions = [post.report.version for post in sampling]
        counters["weights_version"] = min(versions, default=0)

    def _tell_if_due(self) -> None:
        """Tell the supervisor about the nodes."""
        ctx = self._ctx
        if ctx.now() < self._next_tell_s:
            return
        self._next_tell_s = ctx.now() + TELL_EVERY_S
        posts = list(self._fleet.posts.values())
        nodes = [
            {
                "name": post.node.name,
                "state": post.state.value,
                "why": post.why[:500],
                "samplers": post.report.samplers,
                "env_steps": post.report.env_steps,
            }
            for post in posts[:100]
        ]
        troubled = (State.REFUSED, State.LOST)
        open_problems = [
            f"{post.node.name} {'was ' if post.state in troubled else ''}{post.state.value}: {post.why}"[
                :500
            ]
            for post in posts
            if post.why
        ]
        told = {"nodes": nodes, "problems": open_problems[:20]}
        self._told.write(told | {"events": self._events, "num_events": self._num_events})

    def _log_if_due(self) -> None:
        ctx, counters = self._ctx, self._counters
        if ctx.now() < self._next_log_s:
            return
        self._next_log_s = ctx.now() + record_interval(LOG_EVERY_S, ctx.now())
        ctx.recorder.record(
            time_s=ctx.now(),
            env_steps=ctx.control.env_steps,
            updates=int(ctx.control.learner["updates"]),
            **{
                "cluster/nodes": int(counters["nodes"]),
                "cluster/samplers": int(counters["samplers"]),
                "cluster/env_steps": int(counters["env_steps"]),
                "cluster/rows": int(counters["rows"]),
                "cluster/blocks": int(counters["blocks"]),
                "cluster/in_flight": int(counters["in_flight"]),
                "cluster/rows_late": int(counters["rows_late"]),
                "cluster/rows_refused": int(counters["rows_refused"]),
                "cluster/rows_lost": int(counters["rows_lost"]),
                "cluster/blocks_lost": int(counters["blocks_lost"]),
                "cluster/nodes_lost": int(counters["nodes_lost"]),
                "cluster/block_ms": float(counters["block_ms"]),
                "cluster/policy_behind": ctx.weights.version - int(counters["weights_version"]),
            },
        )
