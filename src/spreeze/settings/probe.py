"""The probe: what this machine can do with this environment and this algorithm, measured once.

It runs in a throw-away process, so that running out of memory there hurts nobody, takes some
seconds, and is remembered in the user's cache folder under all it depends on. `tuner` turns what
was measured into settings.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from spreeze.algos import find_algorithm
from spreeze.algos.base import without_data
from spreeze.machine.facts import cache_folder, cpu_name
from spreeze.policy import Policy, PolicyForm
from spreeze.rows import as_matrix, row_layout
from spreeze.settings.speed import learning_speed
from spreeze.spec import EnvSpec
from spreeze.store.files import write_atomic

if TYPE_CHECKING:
    from spreeze.learning.updater import UpdateSetup

ENVS = (4, 8, 16, 32)
CPU_BATCHES = (128, 256, 512, 1024, 2048)
GPU_BATCHES = (256, 1024, 2048, 4096, 8192, 16384, 32768)
THREADS = (1, 2, 4, 8, 16)
ROWS, CHUNK, SPLIT_CHUNKS = 50_000, 4, 8
TURN_S, SLOWEST_S = 0.12, 0.25
"""How long each rate is measured, and an update that takes longer ends the search."""
RATES = (1e-4, 0.005)


def probe_allowed() -> bool:
    """Whether runs may measure the machine first: SPREEZE_PROBE=0 forbids it, and rules of thumb decide."""
    return os.environ.get("SPREEZE_PROBE") != "0"


@dataclass(frozen=True, kw_only=True)
class ProbeRequest:
    """All that the measurement depends on, as plain data."""

    algo: str
    hyper: dict[str, Any]
    spec: dict[str, Any]
    device: str
    second: str | None = None
    """Another device, for the actor: how fast both are together is to be measured too."""
    gpu: str
    precision: str
    cores: int
    threads: int | None
    """Threads of the learner; None: measure how many are best."""

    def path(self) -> Path:
        """Where the answer lies, or will."""
        facts = dataclasses.asdict(self)
        facts["hyper"] = without_data(self.hyper, own=":" in self.algo)
        facts["spec"] = {k: self.spec[k] for k in ("id", "obs_shape", "action_shape")}
        facts["cpu"] = cpu_name()
        facts["versions"] = [version(name) for name in ("spreeze", "torch", "numpy", "gymnasium")]
        facts["batches"] = self.batches  # another version may ask for others
        digest = hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:32]
        return cache_folder() / "tuned" / f"{digest}.json"

    @property
    def batches(self) -> tuple[int, ...]:
        """The sizes that are tried."""
        return CPU_BATCHES if self.device == "cpu" else GPU_BATCHES


@dataclass(frozen=True, kw_only=True)
class ProbeResult:
    """What the machine can do."""

    act_us: dict[int, float]
    """One forward pass of the policy, by environments in a process."""
    thread_hz: dict[int, float]
    """Updates per second by CPU threads, at the smallest batch; empty on a GPU."""
    update_hz: dict[int, float]
    """Updates per second by batch size, not compiled yet."""
    split_hz: dict[int, float] = dataclasses.field(default_factory=dict)
    """The same with the actor on a second device."""
    too_large: int | None
    """A batch size for which the memory was not enough."""
    seconds: float

    def to_json(self) -> dict[str, Any]:
        """As plain data."""
        return dataclasses.asdict(self)


def load_cached(question: ProbeRequest) -> ProbeResult | None:
    """What was measured before, if it was."""
    with contextlib.suppress(OSError, ValueError, TypeError, AttributeError, KeyError):
        stored = json.loads(question.path().read_text())
        for name in ("act_us", "thread_hz", "update_hz", "split_hz"):
            stored[name] = {int(key): float(value) for key, value in stored[name].items()}
        return ProbeResult(**stored)
    return None


def save_cached(question: ProbeRequest, measured: ProbeResult) -> None:
    """Keep it for the next run; without it that one measures again."""
    with contextlib.suppress(OSError):
        question.path().parent.mkdir(parents=True, exist_ok=True)
        write_atomic(question.path(), measured.to_json())


def best_threads(thread_hz: dict[int, float], cores: int) -> int:
    """Threads for a learner on the CPU: what they bring it, against the samplers' cores they take."""
    return max(thread_hz, key=lambda num: learning_speed(thread_hz[num], 1, max(cores - num, 1)))


def measure(question: ProbeRequest) -> ProbeResult:
    """Ask the machine."""
    began = time.monotonic()
    spec = EnvSpec.from_json(question.spec)
    config = find_algorithm(question.algo).config(**question.hyper)
    form = config.policy_form(spec)
    act_us = {num: _act_us(spec, form, num) for num in ENVS}

    import torch

    from spreeze.learning.updater import out_of_memory

    torch.set_flush_denormal(True)
    batches = question.batches
    threads, thread_hz = question.threads, {}
    if threads is None:
        for num in [num for num in THREADS if num < max(question.cores, 2)]:
            torch.set_num_threads(num)
            thread_hz[num] = _update_hz(question, spec, batches[0])
        threads = best_threads(thread_hz, question.cores)
    torch.set_num_threads(threads)
    update_hz: dict[int, float] = {}
    too_large = None
    for batch in batches:
        try:
            update_hz[batch] = _update_hz(question, spec, batch)
        except RuntimeError as error:
            if not out_of_memory(error) or not update_hz:
                raise
            too_large = batch
            break
        if update_hz[batch] < 1 / SLOWEST_S:
            break
    split_hz = {batch: _split_hz(question, spec, batch) for batch in update_hz if question.second}
    return ProbeResult(
        act_us=act_us,
        thread_hz=thread_hz,
        update_hz=update_hz,
        split_hz=split_hz,
        too_large=too_large,
        seconds=round(time.monotonic() - began, 2),
    )


def _act_us(spec: EnvSpec, form: PolicyForm, num_envs: int) -> float:
    policy = Policy(spec, form)
    policy.vector[:] = np.random.default_rng(0).normal(0, 0.05, policy.vector.size)
    obs = np.zeros((num_envs, spec.obs_size), np.float32)
    return 1e6 / _rate(lambda: policy.act(obs, True), TURN_S / 6)


def _update_hz(question: ProbeRequest, spec: EnvSpec, batch: int) -> float:
    """Updates per second in the plain form."""
    import torch

    from spreeze.learning.updater import Updater

    updater = Updater(_update_setup(question, spec, batch))

    def run() -> None:
        updater.run()
        if updater.device.type == "cuda":
            torch.cuda.synchronize(updater.device)

    return updater.chunk * _rate(run, TURN_S)


def _split_hz(question: ProbeRequest, spec: EnvSpec, batch: int) -> float:
    """The same on two devices; they are let run for some chunks, or one would always wait for the other."""
    import torch

    from spreeze.learning.two_devices.updater import TwoDeviceUpdater

    second = torch.device(str(question.second))
    pair = TwoDeviceUpdater(_update_setup(question, spec, batch), second)

    def run() -> None:
        for _ in range(SPLIT_CHUNKS):
            pair.run()
        pair.pause()
        if pair.device.type == "cuda":
            torch.cuda.synchronize(pair.device)

    return SPLIT_CHUNKS * pair.chunk * _rate(run, TURN_S)


def _update_setup(question: ProbeRequest, spec: EnvSpec, batch: int) -> UpdateSetup:
    """What an updater needs, with random transitions."""
    import torch

    from spreeze.learning.replay import Replay
    from spreeze.learning.state import init_state
    from spreeze.learning.updater import UpdateSetup
    from spreeze.networks import unfused_arithmetic

    device = torch.device(question.device)
    if device.index is not None:
        torch.cuda.set_device(device)
    entry = find_algorithm(question.algo)
    config = entry.config(**question.hyper)
    algorithm = entry.build(config, spec, unfused_arithmetic(question.precision))
    layout = row_layout(spec, config.row_format())
    replay = Replay(layout, ROWS, device, prioritised=config.priorities()[0] > 0)
    rows = np.zeros(ROWS, layout.dtype)
    as_matrix(rows)[:] = np.random.default_rng(0).random((ROWS, layout.width), np.float32)
    replay.insert(rows)
    state, chunk = init_state(algorithm, 0, device), CHUNK if device.type == "cuda" else 1
    return UpdateSetup(algorithm, replay, state, batch, RATES, chunk)


def _rate(function: Callable[[], Any], seconds: float) -> float:
    """Calls per second."""
    function()  # whatever it does just once
    began, calls = time.perf_counter(), 0
    while calls < 2 or time.perf_counter() - began < seconds:
        function()
        calls += 1
    return calls / (time.perf_counter() - began)
