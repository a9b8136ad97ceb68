"""The relay on real wires, and one outpost with real samplers; only the cluster between them is not real."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from subprocess import PIPE
from typing import Any

import cloudpickle
import numpy as np
import pytest

import fakes
from fake_cluster import FakeCluster
from spreeze.envs.episodes import Episode
from spreeze.envs.inspect import inspect_env
from spreeze.machine.facts import Machine
from spreeze.roles.context import Context, Job, join
from spreeze.roles.evaluator.elsewhere import EpisodesElsewhere
from spreeze.roles.pacing import NO_LIMIT, LimitForecast
from spreeze.roles.relay import Relay
from spreeze.roles.relay.fleet import State
from spreeze.roles.relay.lag import PolicyAges
from spreeze.roles.relay.messages import Invitation, Report, versions
from spreeze.run.outpost import Outpost
from spreeze.run.plan import make_plan, shared_blocks
from spreeze.settings.defaults import config_with, default_config
from spreeze.spec import EnvSpec
from spreeze.wires.arena import Arena
from spreeze.wires.blocks import pack
from spreeze.wires.documents import CLUSTER, ENV_CALLS

KNOBS: dict[str, Any] = {
    "device": "cpu",
    "sampler.processes": 1,
    "sampler.envs_per_process": 2,
    "cores": "shared",
    "algo.hidden": (4,),
}
RAY = {"backend": "ray", "ray.max_lag_s": 5.0}


class Scripted:
    """An outpost that reports what the test tells it to."""

    def __init__(self, stage: RelayStage) -> None:
        self.stage, self.orders, self.policies = stage, [], []  # type: ignore[var-annotated]
        self.invitation: Invitation | None = None
        self.asked: list[Any] = []

    def hello(self, _: Any) -> dict[str, str]:
        return versions()

    def join(self, invitation: Invitation) -> None:
        self.invitation = invitation

    def take(self, orders: Any, policy: Any, to_play: Any) -> Report:
        self.orders.append(orders)
        if orders.asked is not None:
            self.asked.append((orders.asked, float(to_play[0])))
        if policy is not None:
            self.policies.append(policy)
        return self.stage.reports.pop(0) if self.stage.reports else Report(None)

    def leave(self) -> None:
        pass


class RelayStage:
    """A relay, its wires, and a node with an outpost."""

    def __init__(self, folder: Path, make: Any = None, **knobs: Any) -> None:
        (folder / "metrics").mkdir()
        spec = inspect_env(fakes.CountEnv, "x")
        config = config_with(default_config("sac", env="x"), KNOBS)
        config = make_plan(config, spec, Machine(2, 8 << 30, ())).config
        self.config = config_with(config, RAY | knobs)  # not before: Ray may not be installed here
        self.arena, self.seconds = Arena.create(shared_blocks(self.config, spec)), 0.0
        job = Job("relay", 0, self.config, spec, fakes.CountEnv, folder, 0.0)
        self.context: Context = join(job, self.arena, lambda: self.seconds, lambda _: None)
        self.reports: list[Report] = []
        self.cluster = FakeCluster(make or (lambda _: Scripted(self)))
        self.relay = Relay(self.context, self.cluster)
        self.counters = self.context.counters
        self.reader = self.context.lane_readers(None)[-1]
        self.cluster.add("a")

    def work(self, rounds: int = 1) -> None:
        for _ in range(rounds):
            self.relay.work(0.0)

    def rows(self, num: int, version: int = 1) -> Any:
        rows = np.zeros(num, self.context.layout.dtype)
        rows["reward"], rows["version"] = np.arange(num), version
        return pack(rows)

    def publish(self) -> None:
        vector = np.full(self.context.weights.size, self.seconds, np.float32)
        self.context.weights.publish(vector, 0, 0)

    def arrived(self) -> Any:
        buffer = np.zeros(10_000, self.context.layout.dtype)
        taken = self.reader.drain(buffer.view(np.float32).reshape(len(buffer), -1))
        return buffer["reward"][: len(taken)].tolist()

    def close(self) -> None:
        self.relay.close()
        self.context.close()
        self.arena.close()


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[RelayStage]:
    stage = RelayStage(tmp_path)
    yield stage
    stage.close()


def test_rows_of_other_machines_reach_the_learners_lane(stage: RelayStage) -> None:
    stage.work(2)
    stage.reports = [Report(stage.rows(3), env_steps=7, episodes=2, samplers=4, rows_lost=1)]
    stage.work()
    assert stage.arrived() == [0, 1, 2]
    assert stage.counters["rows"] == 3
    assert stage.context.control.env_steps == 7, "they count for limits and schedules"
    found = {name: int(stage.counters[name]) for name in ("episodes", "samplers", "rows_lost")}
    assert found == {"episodes": 2, "samplers": 4, "rows_lost": 1}


def test_a_block_that_is_not_as_agreed_is_dropped_and_counted(stage: RelayStage) -> None:
    stage.work(2)
    stage.reports = [Report(stage.rows(3)[1:]), Report(("x",)), Report(stage.rows(1))]
    stage.work(3)
    assert stage.arrived() == [0]
    assert stage.counters["rows_refused"] == 3 + 1
    told = stage.context.document(CLUSTER)
    stage.seconds += 1
    stage.work()
    assert told.refresh()
    assert "a block of host-a was dropped: it should have" in told.value["events"][-1]


@pytest.mark.fault("F80")
def test_blocks_whose_policy_was_replaced_too_long_ago_are_dropped_and_counted(
    stage: RelayStage,
) -> None:
    stage.publish()  # version 1
    stage.work(2)
    stage.seconds = 100.0
    stage.reports = [Report(stage.rows(2, version=1))]
    stage.work()
    assert stage.arrived() == [0, 1], "no newer policy: however late, these are the newest rows"
    stage.publish()
    stage.work()
    stage.seconds += 4
    stage.reports = [Report(stage.rows(2, version=1))]
    stage.work()
    assert stage.arrived() == [0, 1], "replaced 4 s ago"
    stage.seconds += 2
    stage.reports = [Report(stage.rows(3, version=1)), Report(stage.rows(1, version=2))]
    stage.work(2)
    assert stage.arrived() == [0]
    assert stage.counters["rows_late"] == 3


def test_orders_carry_the_newest_policy_once_and_the_steps_of_the_others(stage: RelayStage) -> None:
    control = stage.context.control
    stage.seconds = 1.0
    stage.publish()
    control.samplers["env_steps"][0] = 50
    stage.work(2)
    stage.reports = [Report(None, env_steps=8), Report(None, env_steps=9)]
    stage.work(3)
    outpost = stage.cluster.outposts["a"]
    assert len(outpost.policies) == 1
    assert (outpost.policies[0] == 1.0).all()
    assert {orders.steps_elsewhere for orders in outpost.orders} == {50}
    stage.seconds = 2.0
    stage.publish()
    stage.work(3)
    assert (outpost.policies[1] == 2.0).all()
    assert outpost.orders[-1].version == 2
    assert outpost.invitation.fields == stage.context.layout.fields


def test_calls_for_environments_travel_once(stage: RelayStage) -> None:
    stage.work(2)
    stage.context.document(ENV_CALLS).write({"sampler": []})
    stage.work(4)
    outpost = stage.cluster.outposts["a"]
    assert [orders.env_calls for orders in outpost.orders].count({"sampler": []}) == 1


def test_a_relay_that_is_started_again_counts_on(stage: RelayStage) -> None:
    stage.work(2)
    stage.reports = [Report(stage.rows(3), env_steps=7)]
    stage.work()
    stage.relay = Relay(stage.context, stage.cluster)
    stage.work(2)
    stage.reports = [Report(stage.rows(2), env_steps=5)]
    stage.work()
    assert stage.counters["env_steps"] == 12
    assert stage.counters["outposts"] == 2, "the next outpost has other seeds"


def test_an_outpost_with_real_samplers_sends_what_they_do(tmp_path: Path) -> None:
    stage = RelayStage(tmp_path, lambda _: Outpost())
    outpost: Outpost | None = None
    try:
        stage.publish()
        stage.context.control.learner["allowed_steps"] = NO_LIMIT
        stage.context.control.supervisor["min_updates_per_step"] = 0.0
        deadline = time.monotonic() + 60
        rewards: list[float] = []
        while len(rewards) < 1000 and time.monotonic() < deadline:
            stage.work()
            rewards += stage.arrived()
        outpost = stage.cluster.outposts["a"]
        assert stage.relay._fleet.posts["a"].state is State.SAMPLING, stage.relay._events
        assert len(rewards) >= 1000
        assert {reward % 100 for reward in rewards} == {1, 2, 3, 4, 5}, "CountEnv's rows"
        assert stage.counters["env_steps"] >= 1000
        assert stage.counters["weights_version"] == 1, "they act with the learner's policy"
        stage.context.control.learner["allowed_steps"] = 1  # the limit of all machines
        stage.work(5)
        steps = int(stage.counters["env_steps"])
        stage.work(3)
        assert stage.counters["env_steps"] == steps, "samplers hold at the limit"
    finally:
        if outpost is not None:
            outpost.leave()
        stage.close()


def play_elsewhere(stage: RelayStage, here: list[int]) -> Any:
    """An evaluation of a policy of nines, as the evaluator has it; `here` gets its seed if it plays itself."""

    class Pool:
        def play(self, vector: Any, seed: int, meanwhile: Any) -> Any:
            here.append(seed)
            return [[Episode(-1.0, 1, {})]]
            yield

    vector = np.full(stage.context.weights.size, 9, np.float32)
    return EpisodesElsewhere(stage.context, Pool()).play(vector, 77, lambda: False)  # type: ignore[arg-type]


def result_of(stage: RelayStage, playing: Any) -> Any:
    try:
        for _ in range(50):
            next(playing)
            stage.work()
    except StopIteration as end:
        return end.value
    raise AssertionError("it did not end")


@pytest.fixture
def evaluating(tmp_path: Path) -> Iterator[RelayStage]:
    stage = RelayStage(tmp_path, **{"ray.evaluate": "nodes"})
    yield stage
    stage.close()


def test_an_evaluation_is_played_on_a_node(evaluating: RelayStage) -> None:
    evaluating.work(4)
    playing = play_elsewhere(evaluating, here := [])
    next(playing)
    evaluating.work(3)
    ((asked, number),) = evaluating.cluster.outposts["a"].asked
    assert (asked.seed, number) == (77, 9.0), "the policy that was asked about, told once"
    evaluating.reports = [
        Report(None, played=(asked.number - 1, [[[0.0, 1, {}]]])),  # late
        Report(None, played=(asked.number, [[[5.0, 3, {"is_success": 1.0}]]])),
    ]
    assert result_of(evaluating, playing) == [[Episode(5.0, 3, {"is_success": 1.0})]]
    assert here == []


def test_an_evaluation_whose_node_has_left_is_played_by_another_or_here(
    evaluating: RelayStage,
) -> None:
    evaluating.work(4)
    playing = play_elsewhere(evaluating, here := [])
    next(playing)
    evaluating.work(3)
    evaluating.cluster.add("b")
    evaluating.seconds += 2
    evaluating.work(4)
    del evaluating.cluster.there["a"]
    evaluating.seconds += 2
    evaluating.work(4)
    ((asked, _),) = evaluating.cluster.outposts["b"].asked
    del evaluating.cluster.there["b"]
    evaluating.seconds += 2
    assert result_of(evaluating, playing) == [[Episode(-1.0, 1, {})]]
    assert here == [77]
    assert result_of(evaluating, play_elsewhere(evaluating, here)) == [[Episode(-1.0, 1, {})]]
    assert asked.number == 1


@pytest.mark.parametrize("answer", [None, "x", [["y"]], [[[1.0]]], [[[1.0, 2, None]]], object()])
def test_an_answer_that_is_none_is_not_used(evaluating: RelayStage, answer: Any) -> None:
    evaluating.work(4)
    playing = play_elsewhere(evaluating, here := [])
    next(playing)
    evaluating.work(2)
    evaluating.reports = [Report(None, played=(1, answer))]
    assert result_of(evaluating, playing) == [[Episode(-1.0, 1, {})]]
    assert here == [77]


def test_a_real_outpost_plays_the_episodes(tmp_path: Path) -> None:
    stage = RelayStage(
        tmp_path, lambda _: Outpost(), **{"ray.evaluate": "nodes", "evaluator.episodes": 3}
    )
    outpost: Outpost | None = None
    try:
        deadline = time.monotonic() + 60
        while not stage.counters["nodes"] and time.monotonic() < deadline:
            stage.work()
        outpost = stage.cluster.outposts["a"]
        playing = play_elsewhere(stage, here := [])
        episodes: Any = None
        while episodes is None and time.monotonic() < deadline:
            try:
                next(playing)
                stage.work()
            except StopIteration as end:
                episodes = end.value
        assert here == []
        assert [[episode.length for episode in env] for env in episodes] == [[5, 5, 5]]
    finally:
        if outpost is not None:
            outpost.leave()
        stage.close()


def invitation(stage: RelayStage, **changes: Any) -> Invitation:
    return stage.relay._invite(stage.cluster.there["a"], 1)._replace(**changes)


@pytest.mark.fault("F81")
def test_an_outpost_refuses_another_environment_and_another_layout(stage: RelayStage) -> None:
    outpost = Outpost()
    larger = dataclasses.replace(stage.context.spec, obs_shape=(4,))
    assert "another one there" in str(outpost.join(invitation(stage, spec=larger)))
    fields = stage.context.layout.fields[1:]
    assert "rows have another layout there" in str(outpost.join(invitation(stage, fields=fields)))
    assert "numbers there, not 7" in str(outpost.join(invitation(stage, policy_size=7)))
    missing = outpost.join(invitation(stage, env="NoSuchTask-v0"))
    assert "is not registered" in str(missing)
    outpost.leave()


def test_samplers_per_node_follow_its_cpus_and_the_speed_of_a_step() -> None:
    from spreeze.settings.auto.processes import choose_for_node

    config = config_with(default_config("sac", env="x"), KNOBS)
    slow = dataclasses.replace(spec_of_count(), step_us=20_000.0)
    fast = dataclasses.replace(spec_of_count(), step_us=10.0)
    nodes = [choose_for_node(config, spec, 6).sampler for spec in (slow, fast)]
    assert [node.processes for node in nodes] == [6, 6]
    assert [node.envs_per_process for node in nodes] == [8, 16]
    given = config_with(config, {"ray.samplers": 3, "ray.envs_per_process": 5})
    assert choose_for_node(given, fast, 6).sampler.processes == 3
    assert choose_for_node(given, fast, 6).sampler.envs_per_process == 5


OWN = """
from __future__ import annotations
from dataclasses import dataclass
from typing import Literal
from spreeze.algos import Entry, sac
from spreeze.knobs import knob

@dataclass(frozen=True, kw_only=True)
class Config(sac.SACConfig):
    mode: Literal["a", "b"] = knob("a")

ENTRY = Entry(Config, sac.build, "mine")
"""
CHOOSE = """
import sys, cloudpickle
from spreeze.settings.auto.processes import choose_for_node
print(choose_for_node(*cloudpickle.load(sys.stdin.buffer)).sampler.processes)
"""


def test_a_node_needs_no_copy_of_the_file_with_the_user_s_algorithm(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(OWN)
    config = config_with(default_config(f"{tmp_path / 'own.py'}:ENTRY", env="x"), KNOBS)
    sent = cloudpickle.dumps((config, dataclasses.replace(spec_of_count(), step_us=10.0), 3))
    (tmp_path / "own.py").unlink()
    chosen = subprocess.run([sys.executable, "-c", CHOOSE], input=sent, stdout=PIPE, check=True)
    assert chosen.stdout == b"3\n"


def spec_of_count() -> EnvSpec:
    return inspect_env(fakes.CountEnv, "x")


def test_ages_count_from_when_a_policy_was_replaced() -> None:
    ages = PolicyAges(2.0)
    for second in range(10):
        ages.see(second, float(second))
    assert ages.too_old(np.array([5], np.uint32), 9.0), "replaced at 6, three seconds ago"
    assert not ages.too_old(np.array([7], np.uint32), 9.0)
    mixed = np.array([2, 8, 9], np.uint32)
    assert not ages.too_old(mixed, 9.0), "one slow environment does not spoil a block"


def test_the_limit_is_told_as_it_will_be() -> None:
    forecast = LimitForecast(0.5)
    told = [forecast.of(1000 + 100 * i, 0.1 * i) for i in range(11)]
    assert told[0] == 1000
    assert told[-1] == 2000 + 500
    assert forecast.of(NO_LIMIT, 2.0) == NO_LIMIT
    assert forecast.of(0, 3.0) == 0
    assert forecast.of(50, 4.0) == 50, "it has started again"
