"""Critic and actor on two devices: the numbers of one device, ages within their bound, faults that show."""

from __future__ import annotations

import time
from typing import Any

import pytest
import torch

import cases
from spreeze.algos.base import Algorithm
from spreeze.exchange import Channel, ChannelClosed
from spreeze.pair import AHEAD, Pair, SideFailed
from spreeze.replay import Replay
from spreeze.updates import Updater, init_state

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
RATES = (1e-3, 0.01)


def replay_of(algorithm: Algorithm, device: torch.device, num: int = 300) -> Replay:
    prioritised = algorithm.config.priorities()[0] > 0
    replay = Replay(cases.layout_of(algorithm), num, device, prioritised=prioritised)
    replay.insert(cases.random_rows(algorithm, num))
    return replay


def pair_of(
    algorithm: Algorithm,
    first: torch.device = CPU,
    second: torch.device = CPU,
    chunk: int = 4,
    **more: Any,
) -> Pair:
    replay, state = replay_of(algorithm, first), init_state(algorithm, 0, first)
    return Pair(algorithm, replay, state, 32, RATES, chunk, second, **more)


def assert_equal_to_one_device(algorithm: Algorithm, first: torch.device, second: Any) -> None:
    replay, state = replay_of(algorithm, first), init_state(algorithm, 0, first)
    one = Updater(algorithm, replay, state, 32, RATES, algorithm.config.critic_updates())
    two = pair_of(algorithm, first, second, lockstep=True)
    num = 5 * two.chunk
    two.run()  # whatever it prepares must leave no trace
    two.forget()
    two = pair_of(algorithm, first, second, lockstep=True)
    two.prepare()
    torch.manual_seed(3)
    for _ in range(num // one.chunk):
        one.updates()
    torch.manual_seed(3)
    for _ in range(num // two.chunk):
        two.run()
        assert two.age == 0
    two.forget()
    assert float(two.state["updates"]) == num
    for name, tensor in one.state.items():
        torch.testing.assert_close(two.state[name], tensor, rtol=1e-4, atol=1e-5, msg=name)
    assert set(two.metrics()) == set(one.metrics())
    for name, value in one.metrics().items():
        assert two.metrics()[name] == pytest.approx(value, rel=1e-3, abs=1e-4), name


@pytest.mark.parametrize(("first", "second"), DEVICES)
@pytest.mark.parametrize(("name", "kind"), CASES)
def test_in_lockstep_two_devices_give_the_numbers_of_one(
    name: str, kind: str, first: torch.device, second: torch.device
) -> None:
    assert_equal_to_one_device(cases.built(name, kind), first, second)
