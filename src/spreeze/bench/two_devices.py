"""How fast the update is on two devices, against one in the same run, with a model of two GPUs."""

from __future__ import annotations

import dataclasses
import time
from typing import Any

import numpy as np
import torch
from torch import Tensor

from spreeze.bench.learner import GPU_CHUNK, LR_AND_TAU, NUM_ALTERNATIONS, rate, set_up
from spreeze.learning.compiled.job import compile_and_wait
from spreeze.learning.compiled.key import CompileKey
from spreeze.learning.compiled.verify import find_mismatch
from spreeze.learning.state import init_state
from spreeze.learning.two_devices.link import Link, describe_link, find_link
from spreeze.learning.two_devices.updater import TwoDeviceUpdater
from spreeze.learning.updater import Updater, UpdateSetup

LINKS = {"nvlink": (360e9, 5e-6), "pcie4": (25e9, 10e-6)}
"""Bytes per second in each direction, and seconds until a copy starts."""
ASSUMPTIONS = (
    "each half takes the time measured here when it runs alone, plus one local copy of what is exchanged",
    "copies use the GPUs' copy engines, in parallel with the updates and in both directions at once",
    "nvlink: 360 GB/s each way, 80 % of NVLink 4's 450; 5 us until a copy starts",
    "pcie4: 25 GB/s each way, 80 % of PCIe 4.0 x16's 31.5; 10 us until a copy starts",
    "a chunk takes as long as the slowest of: critic's half, actor's half, copies there, copies back",
)


def measure_pair(key: CompileKey, second: str, seconds: float) -> dict[str, Any]:
    """Updates per second on one device and on two, in turns, and of each half alone."""
    first, size = torch.device(key.device), key.batch_size
    if first.index is not None:
        torch.cuda.set_device(first)
    algorithm, replay = set_up(key)
    chunk = GPU_CHUNK if "cuda" in (first.type, torch.device(second).type) else 4

    def setup() -> UpdateSetup:
        return UpdateSetup(
            algorithm, replay, init_state(algorithm, 0, first), size, LR_AND_TAU, chunk
        )

    one, actor_device = Updater(setup()), torch.device(second)
    _use_compiled(one, key)
    pair = TwoDeviceUpdater(setup(), actor_device)
    _use_compiled(pair.critic, dataclasses.replace(key, part="critic"))
    of_actor = dataclasses.replace(key, part="actor", device=second, capacity=0)
    _use_compiled(pair.actor, of_actor)
    share = seconds / (2 * NUM_ALTERNATIONS + 2)
    bursts, ones = [], []
    for _ in range(NUM_ALTERNATIONS):
        ones.append(rate(one.run, one.chunk, share, key.device))
        bursts.append(_burst(pair, share))
    alone: dict[str, float] = {
        half.part: rate(half.run, half.chunk, share, str(half.device)) for half in pair.parts
    }
    two = {name: float(np.median([burst[name] for burst in bursts])) for name in bursts[0]}
    one_hz = float(np.median(ones))
    return {
        "batch_size": size,
        "precision": key.precision,
        "one_device": {"update_hz": one_hz, "update_frame_hz": one_hz * size},
        "two_devices": {
            **two,
            "actor_update_hz": two["update_hz"] / algorithm.config.critic_updates(),
            "update_frame_hz": two["update_hz"] * size,
            "exchange_age_bound": pair.age_bound,
            "chunk": pair.chunk,
            "way": describe_link(first, actor_device),
            "one_physical_gpu": find_link(first, actor_device) is Link.SAME_DEVICE,
        },
        "speedup": two["update_hz"] / one_hz,
        "alone": {f"{part}_update_hz": hz for part, hz in alone.items()},
        "model": model(pair, alone, one_hz),
    }


def model(pair: TwoDeviceUpdater, alone: dict[str, float], one_hz: float) -> dict[str, Any]:
    """Predict the rate of two GPUs of this kind. For other devices there is no prediction."""
    if {pair.device.type, pair.actor.device.type} != {"cuda"}:
        return {"links": {}, "assumptions": ["there is no model for these devices: it needs a GPU"]}
    there, back = [*pair.critic.for_actor, *pair.actor.critics], pair.actor.outgoing
    bytes_each_way = [sum(tensor.nbytes for tensor in way) for way in (there, back)]
    local_s = _local_copy_s([tensor.to(pair.device) for tensor in (*there, *back)])
    halves_s = {f"{part}'s half": pair.chunk / hz + local_s for part, hz in alone.items()}
    return {
        "bytes_there_and_back_per_chunk": bytes_each_way,
        "local_copy_s_per_chunk": local_s,
        "links": {
            name: over_link(name, pair.chunk, halves_s, bytes_each_way, one_hz) for name in LINKS
        },
        "assumptions": ASSUMPTIONS,
    }


def over_link(
    name: str, chunk: int, halves_s: dict[str, float], bytes_each_way: list[int], one_hz: float
) -> dict[str, Any]:
    """Updates per second of two GPUs joined by a link, and what limits them."""
    bytes_per_s, latency_s = LINKS[name]
    copies = {
        name: latency_s + size / bytes_per_s
        for name, size in zip(("copies there", "copies back"), bytes_each_way, strict=True)
    }
    times = halves_s | copies
    limit = max(times, key=lambda part: times[part])
    hz = chunk / times[limit]
    return {"update_hz": hz, "limit": limit, "speedup": hz / one_hz, "s_per_chunk": times}


def _use_compiled(updater: Updater, key: CompileKey) -> None:
    step = compile_and_wait(key)
    if wrong := find_mismatch(key, updater, step):
        raise RuntimeError(f"the compiled update differs from the plain one: {wrong}")
    updater.install_compiled(key.batch_size, step)


def _burst(pair: TwoDeviceUpdater, seconds: float) -> dict[str, float]:
    """Run both sides for a while. The last chunk of the actor counts too."""
    pair.run()
    busy = pair.critic_busy, pair.actor_busy
    before, ages, chunks = [side.seconds for side in busy], [], 0
    began = time.perf_counter()
    while time.perf_counter() - began < seconds:
        pair.run()
        ages.append(pair.age)
        chunks += 1
    pair.pause()
    if pair.device.type == "cuda":
        torch.cuda.synchronize(pair.device)
    passed = time.perf_counter() - began
    shares = [(side.seconds - was) / passed for side, was in zip(busy, before, strict=True)]
    return {
        "update_hz": chunks * pair.chunk / passed,
        "exchange_age": float(np.mean(ages)),
        "exchange_age_max": float(max(ages)),
        "critic_busy": shares[0],
        "actor_busy": shares[1],
    }


def _local_copy_s(tensors: list[Tensor]) -> float:
    """Seconds for one copy of the tensors within their device, which each side makes for every chunk."""
    others = [torch.empty_like(tensor) for tensor in tensors]
    return 1 / rate(lambda: torch._foreach_copy_(others, tensors), 1, 0.2, str(tensors[0].device))
