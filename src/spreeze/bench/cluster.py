"""What a cluster costs: rows through Ray's object store against a lane, and samplers on several nodes.

The nodes are Ray nodes of this machine. Their environment sleeps in each step, so that cores do not decide it.
"""

from __future__ import annotations

import dataclasses
import secrets
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np

from spreeze.bench.wires import rows_by_wire
from spreeze.envs.inspect import inspect_env
from spreeze.machine.facts import detect_machine
from spreeze.roles.context import Job, join
from spreeze.roles.pacing import NO_LIMIT
from spreeze.roles.relay import Relay
from spreeze.roles.relay.fleet import Node
from spreeze.roles.relay.ray_cluster import RayCluster
from spreeze.rows import Layout
from spreeze.run.plan import make_plan, shared_blocks
from spreeze.settings.cluster import AUTH_MODE, AUTH_TOKEN, CLUSTERS
from spreeze.settings.config import Config
from spreeze.settings.defaults import config_with, default_config
from spreeze.settings.ray_section import RayConfig
from spreeze.wires.arena import Arena
from spreeze.wires.blocks import USUAL_BYTES, find_problem, pack, rows_per_block, unpack
from spreeze.wires.experience import Lanes

SLOW_ENV = "spreeze.bench.cluster:SlowEnv"
START_S = 120.0
"""How long nodes may take until all of them sample."""
STORE_BYTES = 100 << 20


class SlowEnv(gym.Env[Any, Any]):
    """Sizes of HalfCheetah; each step sleeps."""

    observation_space = gym.spaces.Box(-np.inf, np.inf, (17,), np.float32)
    action_space = gym.spaces.Box(-1, 1, (6,), np.float32)

    def __init__(self, step_ms: float = 5.0) -> None:
        """Sleep this long in each step."""
        self._step_s = step_ms / 1000

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        """Start an episode."""
        super().reset(seed=seed)
        return np.zeros(17, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Sleep."""
        time.sleep(self._step_s)
        return np.zeros(17, np.float32), 0.0, False, False, {}


class Sender:
    """Answers each call with the same block: nothing but the way is measured."""

    def __init__(self, layout: Layout, num_rows: int) -> None:
        """Make the block."""
        self._rows = np.zeros(num_rows, layout.dtype)

    def nothing(self) -> None:
        """Answer."""

    def block(self) -> Any:
        """Pack and answer."""
        return pack(self._rows)

    def take(self, policy: Any) -> int:
        """Answer once the policy is here."""
        return len(policy)


def measure_way(layout: Layout, policy_size: int, seconds: float) -> dict[str, Any]:
    """Rows through the object store, each part of the cost, and the lane of one machine beside it."""
    cluster = RayCluster(RayConfig(), Sender)
    try:
        (node,) = cluster.nodes().values()
        num_rows = USUAL_BYTES // layout.row_bytes
        sender = cluster.start(Node(node.id, node.name, 1), layout, num_rows)
        cluster.answer(cluster.call(sender, "nothing"))
        each_s = seconds / 5
        policy = np.zeros(policy_size, np.float32)
        call_s = _mean_s(each_s, lambda: cluster.answer(cluster.call(sender, "nothing")))
        block_s = _mean_s(each_s, lambda: cluster.answer(cluster.call(sender, "block")))
        policy_s = _mean_s(
            each_s,
            lambda: cluster.answer(cluster.call(sender, "take", cluster.put(policy.copy()))),
        )
        rows_hz = _streamed(cluster, sender, each_s) * num_rows
    finally:
        cluster.close()
    lane = rows_by_wire(layout, each_s)
    return {
        "row_bytes": layout.row_bytes,
        "block_rows": num_rows,
        "call_ms": 1000 * call_s,
        "block_ms": 1000 * block_s,
        "policy_bytes": 4 * policy_size,
        "policy_ms": 1000 * policy_s,
        "rows_hz": rows_hz,
        "lane_rows_hz": lane.rows / each_s,
        **_row_costs(layout, num_rows, each_s / 4),
    }


def _mean_s(seconds: float, what: Any) -> float:
    began = time.monotonic()
    num = 0
    while time.monotonic() - began < seconds:
        what()
        num += 1
    return (time.monotonic() - began) / num


def _streamed(cluster: RayCluster, sender: Any, seconds: float) -> float:
    """Blocks per second with two calls in flight, as the relay has them."""
    waiting = [cluster.call(sender, "block") for _ in range(2)]
    began, num = time.monotonic(), 0
    while time.monotonic() - began < seconds:
        cluster.answer(waiting.pop(0))
        waiting.append(cluster.call(sender, "block"))
        num += 1
    return num / (time.monotonic() - began)


def _row_costs(layout: Layout, num_rows: int, seconds: float) -> dict[str, float]:
    """Nanoseconds per row: packed on a node, checked and written on the learner's machine."""
    rows = np.zeros(num_rows, layout.dtype)
    block, lane = pack(rows), np.zeros(rows_per_block(layout.row_bytes), layout.dtype)
    parts = {
        "pack_row_ns": lambda: pack(rows),
        "check_row_ns": lambda: find_problem(block, layout),
        "write_row_ns": lambda: unpack(block, lane),
    }
    return {name: 1e9 * _mean_s(seconds, part) / num_rows for name, part in parts.items()}


def measure_scaling(counts: list[int], step_ms: float, seconds: float) -> list[dict[str, Any]]:
    """Env steps per second of so many nodes with one sampler each, for each count."""
    return [_measure_nodes(num, step_ms, seconds) for num in counts]


def _measure_nodes(num: int, step_ms: float, seconds: float) -> dict[str, Any]:
    with _nodes(num) as address, tempfile.TemporaryDirectory() as folder:
        stage = Stage(_config(address, step_ms), Path(folder), step_ms)
        try:
            stage.run(lambda: stage.num_sampling == num, START_S)
            start_s, start, before = time.monotonic(), stage.env_steps, stage.rows
            stage.run(lambda: False, seconds)
            passed_s = time.monotonic() - start_s
            return {
                "nodes": num,
                "sample_hz": (stage.env_steps - start) / passed_s,
                "rows_hz": (stage.rows - before) / passed_s,
                "most_hz": 1000 * num / step_ms,
                "relay_share": stage.busy_share,
            }
        finally:
            stage.close()


def _config(address: str, step_ms: float) -> Config:
    knobs = {
        "backend": "ray",
        "ray.address": address,
        "ray.envs_per_process": 1,
        "sampler.processes": 1,
        "device": "cpu",
        "env.kwargs": f'{{"step_ms": {step_ms}}}',
    }
    return config_with(default_config("sac", env=SLOW_ENV), knobs)


@contextmanager
def _nodes(num: int) -> Iterator[str]:
    """Ray nodes of this machine with one CPU each, and a head without any; yields the address."""
    import os

    os.environ[AUTH_MODE] = "token"
    os.environ.setdefault(AUTH_TOKEN, secrets.token_hex(32))
    os.environ[CLUSTERS] = "0"
    from ray.cluster_utils import Cluster

    cluster: Any = Cluster(initialize_head=True, head_node_args={"num_cpus": 0})
    try:
        for _ in range(num):
            cluster.add_node(num_cpus=1, object_store_memory=STORE_BYTES)
        yield cluster.address
    finally:
        cluster.shutdown()


class Stage:
    """A relay and its wires. What takes its rows is no learner but a loop that drains the lane."""

    def __init__(self, config: Config, folder: Path, step_ms: float) -> None:
        """Connect."""
        from spreeze.envs.targets import adjusted

        (folder / "metrics").mkdir()
        env = adjusted(SLOW_ENV, config.env_kwargs, None)
        spec = inspect_env(env, SLOW_ENV)
        plan = make_plan(config, spec, detect_machine())
        self._arena = Arena.create(shared_blocks(plan.config, spec))
        began_s = time.monotonic()
        job = Job("relay", 0, plan.config, spec, env, folder, began_s)
        self._context = join(
            dataclasses.replace(job), self._arena, lambda: time.monotonic() - began_s, time.sleep
        )
        control = self._context.control
        control.learner["allowed_steps"] = NO_LIMIT
        weights = self._context.weights
        weights.publish(np.zeros(weights.size, np.float32), 0, 0)
        self._relay = Relay(self._context, RayCluster(plan.config.ray))
        self._lanes = Lanes(self._context.lane_readers(None))
        layout = self._context.layout
        self._buffer = np.zeros(rows_per_block(layout.row_bytes), layout.dtype)
        self.rows = 0
        self._work_s = self._all_s = 0.0

    @property
    def num_sampling(self) -> int:
        """Nodes whose steps have come."""
        return int(self._context.counters["nodes"]) if self.env_steps else 0

    @property
    def env_steps(self) -> int:
        """Of all nodes."""
        return int(self._context.counters["env_steps"])

    @property
    def busy_share(self) -> float:
        """The share of a core that the relay has used, this loop included."""
        return self._work_s / max(self._all_s, 1e-9)

    def run(self, enough: Any, seconds: float) -> None:
        """Relay and drain until it is enough, or the time is up."""
        began_s, cpu_s = time.monotonic(), time.process_time()
        while not enough() and time.monotonic() - began_s < seconds:
            self._relay.work(0.02)
            self.rows += len(self._lanes.drain(self._buffer))
        self._work_s, self._all_s = time.process_time() - cpu_s, time.monotonic() - began_s

    def close(self) -> None:
        """Disconnect."""
        self._relay.close()
        self._context.close()
        self._arena.close()
