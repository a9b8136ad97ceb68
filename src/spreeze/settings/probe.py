"""The probe: measures what this machine can do with this environment and this algorithm.

It takes a few seconds in a throw-away process, so running out of memory there is harmless. The result is
cached in the user's cache folder, keyed by everything it depends on. `settings.auto` turns it into settings.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import os
import time
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from spreeze.algos import find_algorithm
from spreeze.algos.base import update_knobs
from spreeze.machine.cache import cache_folder
from spreeze.machine.facts import cpu_name
from spreeze.policy import Policy, PolicyForm
from spreeze.settings.speed import learning_speed
from spreeze.settings.update_rates import (
    TURN_S,
    calls_per_second,
    shared_rates,
    split_rate,
    update_rate,
)
from spreeze.spec import EnvSpec
from spreeze.store.files import write_atomic

ENVS = (4, 8, 16, 32)
CPU_BATCHES = (128, 256, 512, 1024, 2048)
GPU_BATCHES = (256, 1024, 2048, 4096, 8192, 16384, 32768)
THREADS = (1, 2, 4, 8, 16)
SLOWEST_S = 0.25
"""An update slower than this ends the search for larger batches."""


def probe_allowed() -> bool:
    """Whether runs may measure the machine first: SPREEZE_PROBE=0 forbids it, and rules of thumb decide."""
    return os.environ.get("SPREEZE_PROBE") != "0"


@dataclass(frozen=True, kw_only=True)
class ProbeRequest:
    """What to measure, as plain data: all that the result depends on."""

    algo: str
    hyper: dict[str, Any]
    spec: dict[str, Any]
    device: str
    second: str | None = None
    """A second device for the actor: training on both is measured too."""
    ranks: tuple[str, ...] = ()
    """Devices that may share each batch: training on all of them is measured too."""
    gpu: str
    precision: str
    cores: int
    threads: int | None
    """CPU threads of the learner; None: find the best number."""

    def path(self) -> Path:
        """The cache file of the result."""
        facts = dataclasses.asdict(self)
        kind = find_algorithm(self.algo).config
        facts["hyper"] = update_knobs(kind, self.hyper, own=":" in self.algo)
        facts["spec"] = {k: self.spec[k] for k in ("id", "obs_shape", "action_shape")}
        facts["cpu"] = cpu_name()
        facts["versions"] = [version(name) for name in ("spreeze", "torch", "numpy", "gymnasium")]
        facts["batches"] = self.batches  # other versions may try others
        digest = hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:32]
        return cache_folder() / "tuned" / f"{digest}.json"

    @property
    def batches(self) -> tuple[int, ...]:
        """The batch sizes to try."""
        return CPU_BATCHES if self.device == "cpu" else GPU_BATCHES


@dataclass(frozen=True, kw_only=True)
class ProbeResult:
    """What the machine can do."""

    act_us: dict[int, float]
    """Microseconds of a forward pass of the policy, by environments per process."""
    thread_hz: dict[int, float]
    """Updates per second by CPU threads, at the smallest batch; empty on a GPU."""
    update_hz: dict[int, float]
    """Updates per second by batch size, before compilation."""
    split_hz: dict[int, float] = dataclasses.field(default_factory=dict)
    """The same with the actor on a second device."""
    shared_hz: dict[int, float] = dataclasses.field(default_factory=dict)
    """The same on several devices that share each batch."""
    not_shared: str | None = None
    """Why they cannot."""
    too_large: int | None
    """A batch size that did not fit in memory."""
    seconds: float
    file: Path | None = dataclasses.field(default=None, compare=False)
    """Where it is kept for later runs; None: nowhere."""

    def to_json(self) -> dict[str, Any]:
        """As plain data, without the file's name."""
        return {name: value for name, value in dataclasses.asdict(self).items() if name != "file"}


def load_cached(request: ProbeRequest) -> ProbeResult | None:
    """The cached result, if there is one."""
    with contextlib.suppress(OSError, ValueError, TypeError, AttributeError, KeyError):
        stored = json.loads(request.path().read_text())
        for name in ("act_us", "thread_hz", "update_hz", "split_hz", "shared_hz"):
            stored[name] = {int(key): float(value) for key, value in stored[name].items()}
        return ProbeResult(**stored, file=request.path())
    return None


def save_cached(request: ProbeRequest, measured: ProbeResult) -> ProbeResult:
    """The result with its file, cached for later runs; without that they measure again."""
    with contextlib.suppress(OSError):
        path = request.path()
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, measured.to_json())
        return dataclasses.replace(measured, file=path)
    return measured


def best_threads(thread_hz: dict[int, float], cores: int) -> int:
    """The best number of learner threads on a CPU: each one takes a core from the samplers."""
    return max(thread_hz, key=lambda num: learning_speed(thread_hz[num], 1, max(cores - num, 1)))


def measure(request: ProbeRequest) -> ProbeResult:
    """Measure this machine."""
    began = time.monotonic()
    spec = EnvSpec.from_json(request.spec)
    config = find_algorithm(request.algo).config(**request.hyper)
    form = config.policy_form(spec)
    act_us = {num: _act_us(spec, form, num) for num in ENVS}

    import torch

    from spreeze.learning.updater import out_of_memory

    torch.set_flush_denormal(True)
    batches = request.batches
    threads, thread_hz = request.threads, {}
    if threads is None:
        for num in [num for num in THREADS if num < max(request.cores, 2)]:
            torch.set_num_threads(num)
            thread_hz[num] = update_rate(request, spec, batches[0])
        threads = best_threads(thread_hz, request.cores)
    torch.set_num_threads(threads)
    update_hz: dict[int, float] = {}
    too_large = None
    for batch in batches:
        try:
            update_hz[batch] = update_rate(request, spec, batch)
        except RuntimeError as error:
            if not out_of_memory(error) or not update_hz:
                raise
            too_large = batch
            break
        if update_hz[batch] < 1 / SLOWEST_S:
            break
    split_hz = {batch: split_rate(request, spec, batch) for batch in update_hz if request.second}
    shared_hz, not_shared = (
        shared_rates(request, spec, list(update_hz)) if request.ranks else ({}, None)
    )
    return ProbeResult(
        act_us=act_us,
        thread_hz=thread_hz,
        update_hz=update_hz,
        split_hz=split_hz,
        shared_hz=shared_hz,
        not_shared=not_shared,
        too_large=too_large,
        seconds=round(time.monotonic() - began, 2),
    )


def _act_us(spec: EnvSpec, form: PolicyForm, num_envs: int) -> float:
    policy = Policy(spec, form)
    policy.vector[:] = np.random.default_rng(0).normal(0, 0.05, policy.vector.size)
    obs = np.zeros((num_envs, spec.obs_size), np.float32)
    return 1e6 / calls_per_second(lambda: policy.act(obs, True), TURN_S / 6)
