"""Critic and actor on two devices: same numbers as one device, bounded ages, visible failures."""

from __future__ import annotations

import dataclasses
import threading
from collections import deque
from typing import Any

import numpy as np
import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

import cases
from spreeze.algos import ALGORITHMS
from spreeze.algos.base import Algorithm
from spreeze.bench.two_devices import over_link
from spreeze.errors import UsageError
from spreeze.learning.compiled.key import CompileKey
from spreeze.learning.compiled.verify import find_mismatch
from spreeze.learning.replay import Replay
from spreeze.learning.state import init_state
from spreeze.learning.two_devices.channel import Channel, ChannelClosed
from spreeze.learning.two_devices.critic_actor import ActorUpdater
from spreeze.learning.two_devices.link import Link, describe_link, find_link
from spreeze.learning.two_devices.updater import AHEAD, ActorFailed, TwoDeviceUpdater
from spreeze.learning.updater import Updater, UpdateSetup
from spreeze.machine.facts import Gpu, Machine
from spreeze.run.plan import make_plan
from spreeze.settings.auto import resolve
from spreeze.settings.auto.memory import EXCHANGE_SLOTS
from spreeze.settings.checks import check_devices
from spreeze.settings.defaults import config_with, default_config
from spreeze.settings.probe import ProbeRequest, ProbeResult, measure

CPU = torch.device("cpu")
GPU = torch.device("cuda", 0)
needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
DEVICES = [
    pytest.param(CPU, CPU, id="cpu-cpu"),
    pytest.param(GPU, CPU, id="cuda-cpu", marks=needs_gpu),
    pytest.param(CPU, GPU, id="cpu-cuda", marks=needs_gpu),
    pytest.param(GPU, GPU, id="cuda-cuda", marks=needs_gpu),
]
CASES = [case for case in cases.CASES if cases.built(*case).actor_loss is not None]
# Tracing takes seconds: the two that differ most run here, the others in `make learning`.
OFTEN = {("sac", "Box"), ("fasttd3", "Box")}
TRACED = [c if c in OFTEN else pytest.param(*c, marks=pytest.mark.learning) for c in CASES]
RATES = (1e-3, 0.01)


def replay_of(algorithm: Algorithm, device: torch.device, num: int = 300) -> Replay:
    prioritised = algorithm.config.prioritised
    replay = Replay(cases.layout_of(algorithm), num, device, prioritised=prioritised)
    replay.insert(cases.random_rows(algorithm, num))
    return replay


def pair_of(
    algorithm: Algorithm,
    first: torch.device = CPU,
    second: torch.device = CPU,
    chunk: int = 4,
    **more: Any,
) -> TwoDeviceUpdater:
    replay, state = replay_of(algorithm, first), init_state(algorithm, 0, first)
    setup = UpdateSetup(algorithm, replay, state, 32, RATES, chunk)
    return TwoDeviceUpdater(setup, second, **more)


def assert_equal_to_one_device(
    algorithm: Algorithm, first: torch.device, second: torch.device
) -> None:
    replay, state = replay_of(algorithm, first), init_state(algorithm, 0, first)
    chunk = algorithm.config.critic_updates()
    one = Updater(UpdateSetup(algorithm, replay, state, 32, RATES, chunk))
    pair_of(algorithm, first, second, lockstep=True).release()
    two = pair_of(algorithm, first, second, lockstep=True)
    two.prepare()
    num = 5 * two.chunk
    torch.manual_seed(3)
    for i in range(num // one.chunk):
        if i * one.chunk == 2 * two.chunk:  # as a schedule does
            one.set_learning_rate(5e-3)
            one.set_entropy_shift(-0.5)
        one.run_eager()
    torch.manual_seed(3)
    for i in range(num // two.chunk):
        if i == 2:
            two.set_learning_rate(5e-3)
            two.set_entropy_shift(-0.5)
        two.run()
        assert two.age == two.age_bound == 0
    two.pause()
    assert float(two.state["updates"]) == num
    on_cpu = {first, second} == {CPU}  # there even the rounding is the same
    rtol, atol = (1e-5, 1e-6) if on_cpu else (1e-2, 1e-3)
    for name, tensor in one.state.items():
        torch.testing.assert_close(two.state[name], tensor, rtol=rtol, atol=atol)
    assert set(two.metrics()) == set(one.metrics())
    for name, value in one.metrics().items():
        assert two.metrics()[name] == pytest.approx(value, rel=0.05, abs=1e-2), name


@pytest.mark.parametrize(("first", "second"), DEVICES)
@pytest.mark.parametrize(("name", "kind"), CASES)
def test_in_lockstep_two_devices_give_the_numbers_of_one(
    name: str, kind: str, first: torch.device, second: torch.device
) -> None:
    assert_equal_to_one_device(cases.built(name, kind), first, second)


@pytest.mark.parametrize(
    "knobs", [{"priority": 0.6}, {"reward_scale": 0.1, "max_grad_norm": 0.1}, {"policy_delay": 3}]
)
def test_in_lockstep_every_knob_means_the_same(knobs: dict[str, Any]) -> None:
    assert_equal_to_one_device(cases.built("sac", "Box", **knobs), CPU, CPU)


@pytest.mark.parametrize(("first", "second"), DEVICES)
@pytest.mark.parametrize(("name", "kind"), CASES)
def test_running_freely_ages_stay_within_their_bound_and_nothing_is_lost(
    name: str, kind: str, first: torch.device, second: torch.device
) -> None:
    pair = pair_of(cases.built(name, kind), first, second)
    ages = []
    for _ in range(30):
        pair.run()
        ages.append(pair.age)
    pair.pause()
    round_size = pair.algorithm.config.critic_updates()
    assert pair.age_bound == (AHEAD + 1) * pair.chunk - round_size
    assert all(0 <= age <= pair.age_bound for age in ages)
    assert float(pair.state["updates"]) == float(pair.actor.state["updates"]) == 30 * pair.chunk
    for name_, tensor in pair.actor.state.items():
        torch.testing.assert_close(pair.state[name_].cpu(), tensor.cpu(), rtol=0, atol=0)
    assert all(torch.isfinite(tensor).all() for tensor in pair.state.values())
    assert pair.critic_busy.seconds > 0
    assert pair.actor_busy.seconds > 0


@pytest.mark.parametrize(("first", "second"), DEVICES)
def test_running_freely_a_one_state_problem_is_solved(
    first: torch.device, second: torch.device
) -> None:
    """One state, one step per episode; the reward is highest, 0, when all actions are 0.5."""
    algorithm = cases.built("td3", "Box", hidden=(32,))
    layout = cases.layout_of(algorithm)
    rows = np.zeros(512, layout.dtype)
    rows["action"] = np.random.default_rng(0).uniform(-1, 1, (512, 2))
    rows["reward"] = -10 * ((rows["action"] - 0.5) ** 2).sum(1)
    replay = Replay(layout, 512, first)
    replay.insert(rows)
    state = init_state(algorithm, 0, first)
    pair = TwoDeviceUpdater(UpdateSetup(algorithm, replay, state, 64, (3e-3, 0.05), 4), second)
    torch.manual_seed(0)
    for _ in range(250):
        pair.run()
    pair.release()
    assert pair.metrics()["actor_loss"] == pytest.approx(0.0, abs=0.5)


def test_a_crash_in_the_actors_thread_is_raised_with_its_cause(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pair = pair_of(cases.built("sac", "Box"))
    real, calls = ActorUpdater.run, []

    def run_a_while(actor: ActorUpdater) -> None:
        calls.append(actor)
        if len(calls) == 5:
            raise ZeroDivisionError("the actor fell over")
        real(actor)

    monkeypatch.setattr(ActorUpdater, "run", run_a_while)
    what = "on cpu failed: ZeroDivisionError: the actor fell over"
    with pytest.raises(ActorFailed, match=what) as got:
        deque((pair.run() for _ in range(50)), 0)
    assert isinstance(got.value.__cause__, ZeroDivisionError)
    pair.run()  # it can continue with the last state
    pair.release()


def test_a_crash_in_the_last_chunk_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: ActorUpdater) -> None:
        raise ZeroDivisionError

    pair = pair_of(cases.built("sac", "Box"))
    monkeypatch.setattr(ActorUpdater, "run", fail)
    pair.run()
    with pytest.raises(ActorFailed):
        pair.pause()
    pair.pause()


def test_a_crash_of_the_critic_leaves_no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    pair = pair_of(cases.built("sac", "Box"))
    pair.run()
    monkeypatch.setattr(pair.critic, "run_eager", None)
    pair.critic.install_compiled(32, lambda *_: [])
    with pytest.raises(TypeError):
        pair.run()
    pair.release()


@pytest.mark.parametrize(("first", "second"), DEVICES)
def test_the_batch_size_may_change_in_between(first: torch.device, second: torch.device) -> None:
    pair = pair_of(cases.built("sac", "Box"), first, second)
    for size in (32, 64, 16, 32):
        pair.batch_size = size
        pair.run()
        pair.run()
        assert pair.critic.for_actor[0].shape[:2] == (4, size)
    pair.release()
    pair.run()
    pair.pause()
    assert float(pair.state["updates"]) == float(pair.actor.state["updates"]) == 36


def test_without_an_actor_there_is_no_pair() -> None:
    with pytest.raises(ValueError, match="without an actor"):
        pair_of(cases.built("dqn", "Discrete"))


def part_key(name: str, kind: str, part: Any) -> CompileKey:
    return CompileKey(
        algo=name,
        hyper=dataclasses.asdict(ALGORITHMS[name].config(hidden=(16, 16))),
        spec=cases.SPECS[kind].to_json(),
        capacity=0 if part == "actor" else 300,
        batch_size=32,
        device="cpu",
        precision="float32",
        threads=1,
        part=part,
    )


@pytest.mark.parametrize("index", [0, 1], ids=["critic", "actor"])
@pytest.mark.parametrize(("name", "kind"), TRACED)
def test_a_part_is_the_same_operations_whatever_the_numbers(
    name: str, kind: str, index: int
) -> None:
    """A compiled update is a trace: it must also hold for other transitions and a later state."""
    pair = pair_of(cases.built(name, kind, hidden=(16, 16)))
    part = pair.parts[index]
    made = part_key(name, kind, part.part)
    blank = made.updater("float32", shape_only=True)
    with torch.no_grad():
        traced = make_fx(blank.plain)(*blank.inputs(32))
    for _ in range(2):
        pair.run()
        pair.pause()
        assert find_mismatch(made, part, traced) is None

    def wrong(*inputs: Any) -> Any:
        first, *rest = part.plain(*inputs)
        return (first * 1.1, *rest)

    assert part.part in str(find_mismatch(made, part, wrong))


def test_each_part_is_compiled_separately() -> None:
    made = [part_key("sac", "Box", part) for part in ("critic", "actor", "whole")]
    assert len({key.path() for key in made}) == 3


def device_like(device: torch.device, value: float) -> torch.Tensor:
    return torch.full((100_000,), value, device=device)


@pytest.mark.parametrize(("first", "second"), DEVICES)
def test_copies_are_never_torn_and_never_older_than_asked(
    first: torch.device, second: torch.device
) -> None:
    channel, num = Channel(first, second, 3), 300
    problems: list[str] = []

    def send() -> None:
        for i in range(1, num + 1):
            channel.send([device_like(first, i), device_like(first, -i)], i)
        channel.close()

    def receive() -> None:
        into, before = [device_like(second, 0), device_like(second, 0)], 0
        while before < num:
            channel.take_newest(into, before + 1)
            seen = {float(x) for part in into for x in (part.min().abs(), part.max().abs())}
            if seen != {float(channel.version)} or channel.version <= before:
                problems.append(f"{seen} as version {channel.version} after {before}")
            before = channel.version

    sender = threading.Thread(target=send)
    sender.start()
    receive()
    sender.join()
    assert not problems


def test_a_channel_keeps_the_order_or_takes_the_newest() -> None:
    channel, into = Channel(CPU, CPU, 4), [torch.zeros(1)]
    for i in (1, 2, 3, 4):
        channel.send([torch.full((1,), float(i))], i)
    channel.take_next(into)
    assert (channel.version, float(into[0])) == (1, 1.0)
    channel.take_newest(into, 2)
    assert (channel.version, float(into[0])) == (4, 4.0)
    channel.take_newest(into, 4)  # has it already
    channel.close()
    with pytest.raises(ChannelClosed):
        channel.take_newest(into, 5)
    with pytest.raises(ChannelClosed):
        channel.take_next(into)
    with pytest.raises(ChannelClosed):
        channel.send(into, 6)


def test_the_link_between_two_devices_is_known_and_has_words() -> None:
    gpu = torch.device("cuda:0")
    assert find_link(CPU, CPU) is Link.HOST_MEMORY
    assert find_link(gpu, CPU) is find_link(CPU, gpu) is Link.BUS
    assert find_link(gpu, gpu) is find_link(gpu, torch.device("cuda")) is Link.SAME_DEVICE
    assert describe_link(gpu, CPU) == "cuda:0 and cpu: over the bus"


def test_gpus_that_cannot_reach_each_other_go_through_the_host(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gpus = torch.device("cuda:0"), torch.device("cuda:1")
    for able in (True, False):
        monkeypatch.setattr(torch.cuda, "can_device_access_peer", lambda *_, able=able: able)
        assert find_link(*gpus) is (Link.PEER_TO_PEER if able else Link.THROUGH_HOST)


@pytest.mark.parametrize(
    ("device", "words"),
    [
        ("cuda:0,cuda:0", ["one GPU twice", "--learner.same-device"]),
        ("cuda,cuda:0", ["one GPU twice"]),
        ("cuda:0,cuda:1,cuda:2", ["two devices at most", "cuda:0,cuda:1"]),
        ("auto,cpu", ["must be auto, cpu, cuda or cuda:0"]),
        ("cuda:0,", ["cuda:0,cuda:1"]),
        ("cuda:0;cuda:1", ["cuda:0,cuda:1"]),
        ("cpu,tpu", ["--device cpu,tpu"]),
        ("cuda:0+cuda:0", ["one GPU twice", "--learner.same-device"]),
        ("cuda:0+cuda:1+cuda:2", ["these are 3 devices", "2, 4 or 8: cuda:0+cuda:1."]),
        ("cpu+cuda:0", ["one kind"]),
        ("cuda:0,cuda:1+cuda:2", ["either a comma", "cuda:0+cuda:1+cuda:2"]),
    ],
)
def test_devices_that_do_not_go_together_are_refused(device: str, words: list[str]) -> None:
    (problem,) = check_devices(device, same_allowed=False)
    assert all(word in problem for word in words)


@pytest.mark.parametrize(
    "device",
    ["auto", "cpu", "cuda:1", "cpu,cpu", "cuda,cpu", "cuda:0,cuda:1", "cpu+cpu", "cuda:0+cuda:1"],
)
def test_devices_that_go_together_are_not(device: str) -> None:
    assert check_devices(device, same_allowed=False) == []
    assert check_devices("cuda:0,cuda:0", same_allowed=True) == []


GIB = 2**30
ONE_GPU = Machine(cores=16, memory_bytes=64 * GIB, gpus=(Gpu("RTX", 20 * GIB),))
TWO_GPUS = dataclasses.replace(ONE_GPU, gpus=(Gpu("RTX", 20 * GIB), Gpu("RTX", 20 * GIB)))


def test_a_second_gpu_that_is_not_there_is_refused() -> None:
    config = config_with(default_config(env="x"), {"device": "cuda:0,cuda:1"})
    with pytest.raises(UsageError, match="--device cuda:0,cuda:1: no such GPU, only 1 here"):
        make_plan(config, cases.BOX, ONE_GPU)
    assert make_plan(config, cases.BOX, TWO_GPUS).config.devices == ("cuda:0", "cuda:1")
    small = dataclasses.replace(TWO_GPUS, gpus=(Gpu("RTX", 20 * GIB), Gpu("RTX", GIB // 2)))
    with pytest.raises(UsageError, match="the actor's GPU memory"):
        make_plan(config, cases.BOX, small)


def test_an_algorithm_without_an_actor_is_refused_two_devices() -> None:
    config = config_with(default_config(env="y"), {"device": "cpu,cpu"})
    with pytest.raises(UsageError, match=r"dqn has no actor .* use ppo"):
        make_plan(config, cases.DISCRETE, ONE_GPU)


def test_memory_is_reckoned_with_for_all_copies_that_there_can_be() -> None:
    assert EXCHANGE_SLOTS == AHEAD + 3, "those of the channel, and the one that is learned from"


def chosen(machine: Machine, split_hz: dict[int, float], **knobs: Any) -> tuple[str, str]:
    answer = ProbeResult(
        act_us={8: 40.0},
        thread_hz={},
        update_hz={256: 1000.0, 8192: 500.0},
        split_hz=split_hz,
        too_large=None,
        seconds=1.0,
    )
    asked: list[ProbeRequest] = []

    def ask(question: ProbeRequest) -> ProbeResult:
        asked.append(question)
        return dataclasses.replace(answer, split_hz=split_hz if question.second else {})

    made = resolve(config_with(default_config(env="x"), knobs), cases.BOX, machine, ask)
    assert len(asked) == 1
    return made.config.device, str(made.reasons.get("device", ""))


def test_two_gpus_are_taken_if_they_are_faster_and_the_reason_is_said() -> None:
    device, reason = chosen(TWO_GPUS, {256: 1500.0, 8192: 800.0})
    assert device == "cuda:0,cuda:1"
    assert "500 on one GPU at batch 8192, 800 with critic and actor on two at batch 8192" in reason
    device, reason = chosen(TWO_GPUS, {256: 900.0, 8192: 510.0})
    assert device == "cuda"
    assert "510 with critic and actor on two" in reason
    assert chosen(ONE_GPU, {})[0] == "cuda"
    assert chosen(TWO_GPUS, {256: 9000.0}, device="cuda:1")[0] == "cuda:1"


def test_the_probe_measures_two_devices_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("spreeze.settings.probe.CPU_BATCHES", (32, 64))
    monkeypatch.setattr("spreeze.settings.update_rates.TURN_S", 0.01)
    question = ProbeRequest(
        algo="sac",
        hyper=dataclasses.asdict(ALGORITHMS["sac"].config(hidden=(8, 8))),
        spec=cases.BOX.to_json(),
        device="cpu",
        second="cpu",
        gpu="",
        precision="float32",
        cores=2,
        threads=1,
    )
    made = measure(question)
    assert list(made.split_hz) == [32, 64]
    assert all(rate > 0 for rate in made.split_hz.values())


def test_the_model_of_two_gpus_is_as_fast_as_the_slowest_part() -> None:
    halves = {"critic's half": 2e-3, "actor's half": 1e-3}
    light = over_link("pcie4", 16, halves, [1_000_000, 1_000_000], one_hz=6000.0)
    assert (light["update_hz"], light["limit"]) == (pytest.approx(8000), "critic's half")
    assert light["speedup"] == pytest.approx(8 / 6)
    heavy = over_link("pcie4", 16, halves, [100_000_000, 1_000_000], one_hz=6000.0)
    assert heavy["limit"] == "copies there"
    assert over_link("nvlink", 16, halves, [100_000_000, 0], 1.0)["limit"] == "critic's half"
