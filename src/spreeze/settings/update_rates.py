"""How many updates per second this machine can do: what the probe measures with torch."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from spreeze.algos import build_algorithm
from spreeze.rows import as_matrix, row_layout
from spreeze.spec import EnvSpec

if TYPE_CHECKING:
    import torch

    from spreeze.algos.base import Algorithm
    from spreeze.learning.replay import Replay
    from spreeze.learning.updater import UpdateSetup
    from spreeze.settings.probe import ProbeRequest

ROWS, FILMS, CHUNK, SPLIT_CHUNKS = 50_000, 100, 4, 8
TURN_S = 0.12
"""How long each rate is measured."""
PROBE_RATES = (1e-4, 0.005)
"""Learning rate and tau; they do not change how long an update takes."""


def update_rate(request: ProbeRequest, spec: EnvSpec, batch: int) -> float:
    """Updates per second on one device, before compilation."""
    import torch

    from spreeze.learning.updater import Updater

    updater = Updater(_update_setup(request, spec, batch))

    def run() -> None:
        updater.run()
        if updater.device.type == "cuda":
            torch.cuda.synchronize(updater.device)

    return updater.chunk * calls_per_second(run, TURN_S)


def split_rate(request: ProbeRequest, spec: EnvSpec, batch: int) -> float:
    """The same on two devices, over several chunks: after a single one, one device waits for the other."""
    import torch

    from spreeze.learning.two_devices.updater import TwoDeviceUpdater

    second = torch.device(str(request.second))
    pair = TwoDeviceUpdater(_update_setup(request, spec, batch), second)

    def run() -> None:
        for _ in range(SPLIT_CHUNKS):
            pair.run()
        pair.pause()
        if pair.device.type == "cuda":
            torch.cuda.synchronize(pair.device)

    return SPLIT_CHUNKS * pair.chunk * calls_per_second(run, TURN_S)


def shared_rates(
    request: ProbeRequest, spec: EnvSpec, batches: Sequence[int]
) -> tuple[dict[int, float], str | None]:
    """The same on several devices that share each batch, by batch size; or why that fails."""
    import torch

    from spreeze.learning.data_parallel.shards import ShardedReplay
    from spreeze.learning.data_parallel.updater import DataParallelUpdater

    hz: dict[int, float] = {}
    devices = [torch.device(name) for name in request.ranks]
    try:
        for batch in batches:
            setup = _update_setup(
                dataclasses.replace(request, device=request.ranks[0]), spec, batch
            )
            replay = ShardedReplay([_replay(setup.algorithm, device) for device in devices])
            updater = DataParallelUpdater(setup, replay, seeds=range(1, len(devices)))

            def run(updater: DataParallelUpdater = updater) -> None:
                updater.run()
                for device in devices:
                    if device.type == "cuda":
                        torch.cuda.synchronize(device)

            hz[batch] = updater.chunk * calls_per_second(run, TURN_S)
            updater.close()
    except RuntimeError as error:  # such as NCCL's, on an unusual machine: one device is enough
        return {}, str(error).partition("\n")[0]
    return hz, None


def _update_setup(request: ProbeRequest, spec: EnvSpec, batch: int) -> UpdateSetup:
    """What an updater needs, with random transitions."""
    import torch

    from spreeze.learning.state import init_state
    from spreeze.learning.updater import UpdateSetup
    from spreeze.networks import unfused_arithmetic

    device = torch.device(request.device)
    if device.index is not None:
        torch.cuda.set_device(device)
    arithmetic = unfused_arithmetic(request.precision)
    algorithm = build_algorithm(request.algo, request.hyper, spec, arithmetic)
    state, chunk = init_state(algorithm, 0, device), CHUNK if device.type == "cuda" else 1
    return UpdateSetup(algorithm, _replay(algorithm, device), state, batch, PROBE_RATES, chunk)


def _replay(algorithm: Algorithm, device: torch.device) -> Replay:
    """A replay of random rows."""
    from spreeze.learning.replay import Replay

    layout = row_layout(algorithm.spec, algorithm.config.row_format())
    num = ROWS if layout.film is None else FILMS
    replay = Replay(layout, num, device, prioritised=algorithm.config.prioritised)
    rows = np.zeros(num, layout.dtype)
    as_matrix(rows)[:] = np.random.default_rng(0).random((num, layout.width), np.float32)
    replay.insert(rows)
    return replay


def calls_per_second(function: Callable[[], Any], seconds: float) -> float:
    """Calls per second."""
    function()  # first-time costs do not count
    began, calls = time.perf_counter(), 0
    while calls < 2 or time.perf_counter() - began < seconds:
        function()
        calls += 1
    return calls / (time.perf_counter() - began)
