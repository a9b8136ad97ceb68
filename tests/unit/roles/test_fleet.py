"""Outposts come and go: what is in flight stays bounded, and who leaves takes nothing but its own samplers along."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from fake_cluster import FakeCluster
from spreeze.roles.relay.fleet import IN_FLIGHT, Fleet, Node, State
from spreeze.roles.relay.messages import Orders, Report, versions

ORDERS = Orders((), 0, 0)


class Counter:
    """An outpost that makes ten steps with each call."""

    def __init__(self, node: Node) -> None:
        self.env_steps, self.refusal = 0, None
        self.versions = versions()
        self.left = False

    def hello(self, _: Any) -> dict[str, str]:
        return self.versions

    def join(self, machine: int) -> str | None:
        self.machine = machine
        return self.refusal

    def take(self, *_: Any) -> Report:
        self.env_steps += 10
        return Report(None, env_steps=self.env_steps, episodes=self.env_steps // 10)

    def leave(self) -> None:
        self.left = True


class Setting:
    def __init__(self, make: Any = Counter) -> None:
        self.seconds = 0.0
        self.said: list[str] = []
        self.cluster = FakeCluster(make)
        self.fleet = Fleet(
            self.cluster,
            lambda _, machine: machine,
            self.said.append,
            clock=lambda: self.seconds,  # type: ignore[arg-type,return-value]
        )

    def work(self, rounds: int = 1) -> int:
        """Rounds as the relay makes them; returns how many reports came."""
        reports = 0
        for _ in range(rounds):
            self.fleet.look_for_nodes()
            self.fleet.send(lambda _: (ORDERS, None, None))
            reports += len(self.fleet.receive(0.0))
        return reports

    def state(self, id: str) -> State:
        return self.fleet.posts[id].state


@pytest.fixture
def setting() -> Setting:
    return Setting()


def test_a_node_says_hello_joins_and_samples(setting: Setting) -> None:
    setting.cluster.add("a")
    assert setting.work(2) == 0
    assert setting.state("a") is State.SAMPLING
    assert setting.work(3) == 3
    assert setting.fleet.env_steps == 30
    assert setting.fleet.episodes == 3


def test_calls_in_flight_are_bounded_however_slow_a_node_is(setting: Setting) -> None:
    setting.cluster.add("a")
    setting.cluster.add("b")
    setting.work(2)
    setting.cluster.slow = {"a"}
    before = setting.fleet.posts["a"].report.env_steps
    assert setting.work(50) == 50, "the other node goes on"
    assert len(setting.fleet.posts["a"].pending) == IN_FLIGHT
    assert setting.fleet.num_in_flight <= 2 * IN_FLIGHT
    assert setting.fleet.posts["a"].report.env_steps == before


def test_a_node_that_leaves_keeps_its_steps_and_may_come_back(setting: Setting) -> None:
    setting.cluster.add("a")
    setting.work(5)
    del setting.cluster.there["a"]
    setting.work()
    assert setting.fleet.posts == {}
    assert setting.fleet.env_steps == 30, "steps that were made stay made"
    assert setting.fleet.num_lost == 1
    setting.cluster.add("a")
    setting.work(3)
    assert setting.state("a") is State.SAMPLING
    assert setting.fleet.env_steps == 40
    assert setting.cluster.outposts["a"].machine == 2, "it has other seeds than the one before"


def test_a_killed_outpost_is_started_again_after_a_while(setting: Setting) -> None:
    setting.cluster.add("a")
    setting.cluster.add("b")
    setting.work(4)
    setting.cluster.broken.add("a")
    assert setting.work(2) == 2, "the other one goes on"
    assert setting.state("a") is State.LOST
    assert "it was killed" in setting.fleet.posts["a"].why
    setting.work(3)
    assert setting.state("a") is State.LOST, "not at once: its node may be about to leave"
    setting.seconds += 2
    setting.work(3)
    assert setting.state("a") is State.SAMPLING


def test_an_outpost_that_is_killed_again_and_again_is_started_later_each_time(
    setting: Setting,
) -> None:
    setting.cluster.add("a")
    starts = []
    for _ in range(100):
        machines = setting.fleet.machines
        setting.work()
        if setting.fleet.machines > machines:
            starts.append(setting.seconds)
        setting.cluster.broken.add("a")
        setting.seconds += 1
    gaps = [later - earlier for earlier, later in itertools.pairwise(starts)]
    assert gaps == sorted(gaps)
    assert gaps[-1] >= 30


@pytest.mark.fault("F81")
def test_another_version_is_refused_by_name_and_not_asked_again() -> None:
    class Old(Counter):
        def __init__(self, node: Node) -> None:
            super().__init__(node)
            self.versions = versions() | {"Spreeze": "0.0.1"}

    setting = Setting(Old)
    setting.cluster.add("a")
    setting.work(3)
    assert setting.state("a") is State.REFUSED
    assert "host-a was refused: Spreeze 0.0.1 there" in setting.said[-1]
    setting.seconds += 100
    setting.work(3)
    assert setting.fleet.machines == 1


@pytest.mark.fault("F81")
def test_a_node_that_finds_another_layout_says_so() -> None:
    class Other(Counter):
        def __init__(self, node: Node) -> None:
            super().__init__(node)
            self.refusal = "rows have another layout there"  # type: ignore[assignment]

    setting = Setting(Other)
    setting.cluster.add("a")
    setting.work(3)
    assert setting.state("a") is State.REFUSED
    assert setting.fleet.posts["a"].why == "rows have another layout there"


def test_a_node_without_the_user_s_code_is_refused(setting: Setting) -> None:
    setting.cluster.add("a")
    setting.cluster.without_code.add("a")
    setting.work(3)
    assert setting.state("a") is State.REFUSED
    assert "host-a was refused: No module named 'mine'" in setting.said[-1]


def test_a_lost_block_costs_nothing_but_itself(setting: Setting) -> None:
    setting.cluster.add("a")
    setting.work(3)
    setting.cluster.losing_blocks = True
    assert setting.work(2) == 0
    setting.cluster.losing_blocks = False
    assert setting.work(1) == 1
    assert setting.fleet.blocks_lost == 2
    assert setting.fleet.num_lost == 0


def test_at_the_end_all_leave(setting: Setting) -> None:
    setting.cluster.add("a")
    setting.work(3)
    outpost = setting.cluster.outposts["a"]
    waiting = setting.cluster.answered
    setting.cluster.answered = lambda tickets, s: [  # type: ignore[method-assign]
        ticket for ticket in waiting(tickets, s) if setting.cluster.answer(ticket) is None
    ]
    setting.fleet.close()
    assert outpost.left
    assert setting.cluster.closed
    assert len(setting.cluster.ended) == 1
