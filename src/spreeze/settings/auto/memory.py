"""What a run keeps in memory, and where."""

from __future__ import annotations

from spreeze.machine.facts import Machine
from spreeze.rows import row_layout
from spreeze.settings.auto.devices import gpu_index
from spreeze.settings.auto.resolver import AutoResolver
from spreeze.settings.config import Config, resolved
from spreeze.spec import EnvSpec

MANY_ROWS = 1_000_000
FRESH_BATCHES = 4
"""Batches that are kept of segments, which are only good while they are new."""
GPU_SHARE, LOCKED_SHARE = 0.9, 0.5
"""Of the free memory: what a run takes of the GPU's at most; what it page-locks of the host's."""
NETWORK_COPIES, ACTIVATION_COPIES = 8, 24  # parameters, targets, moments, gradients; both passes
EXCHANGE_SLOTS = 5  # chunks of rows, on either of two devices: some on their way, one in use
CUDA_BYTES = 1 << 30  # CUDA itself, its libraries and graphs, in learner and compiler


def choose_replay(resolver: AutoResolver, spec: EnvSpec, machine: Machine) -> None:
    """How many transitions are kept, and where."""
    config, form = resolver.config, resolver.config.hyper.row_format()
    layout = row_layout(spec, form)
    row_bytes, host = layout.row_bytes, machine.memory_bytes
    if form.segment > 1:
        rows = max(100, FRESH_BATCHES * resolved(config.learner.batch_size))
        resolver.choose("replay.capacity", rows, "only the newest segments are learned from")
    if not resolver.on_gpu:
        reason = f"{row_bytes} bytes each, {host / 2**30:.0f} GiB free"
        rows = min(MANY_ROWS, int(host / 4 / row_bytes))
        capacity = resolver.choose("replay.capacity", rows, reason)
        resolver.choose("replay.placement", "host", "the networks learn on the CPU")
    else:
        free = machine.gpus[gpu_index(config.devices[0]) or 0].memory_bytes
        room = int(free * GPU_SHARE) - sum(learning_bytes(config, spec).values())
        locked = int(host * LOCKED_SHARE)
        where, budget = (
            ("GPU", room) if config.replay.placement in ("auto", "gpu") else ("host", locked)
        )
        rows = min(MANY_ROWS, max(1000, budget // row_bytes - layout.slack_rows))
        reason = f"{row_bytes} bytes each, room for {budget / 2**30:.1f} GiB in {where} memory"
        capacity = resolver.choose("replay.capacity", rows, reason)
        needed = (capacity + layout.slack_rows) * row_bytes
        size, left = f"{needed / 2**30:.1f} GiB", f"{max(room, 0) / 2**30:.1f} GiB of GPU memory"
        if needed <= room:
            resolver.choose("replay.placement", "gpu", f"{size}, and there is room for {left}")
        elif needed <= locked or config.hyper.priorities()[0] > 0:  # the device has to read it
            reason = f"{size} do not fit in {left}, but in half of the free host memory"
            resolver.choose("replay.placement", "pinned", reason)
        else:
            reason = f"{size} fit neither in {left} nor in half of the free host memory"
            resolver.choose("replay.placement", "host", reason)
    fewest = 1000 // form.segment
    warmup = min(max(resolved(config.learner.batch_size), fewest), capacity)
    resolver.choose("learner.warmup_rows", warmup, "at least a batch of random actions")


def learning_bytes(config: Config, spec: EnvSpec) -> dict[str, int]:
    """What learning takes of its device's memory, the replay aside."""
    hidden = resolved(config.hyper.hidden)
    numbers = config.hyper.policy_form(spec).size(spec) * 3  # actor and two critics
    rows = resolved(config.learner.batch_size) * config.hyper.row_format().segment
    units = rows * sum(hidden)
    exchanged = {}
    if len(config.devices) > 1:
        chunk = resolved(config.learner.updates_per_publish) * resolved(config.learner.batch_size)
        row_bytes = row_layout(spec, config.hyper.row_format()).row_bytes
        exchanged["rows for the actor"] = EXCHANGE_SLOTS * chunk * row_bytes
    return {
        **exchanged,
        "networks": numbers * 4 * NETWORK_COPIES,
        "activations": units * 4 * ACTIVATION_COPIES,
        **({} if config.devices[0] == "cpu" else {"CUDA": CUDA_BYTES}),
    }


def second_bytes(config: Config, spec: EnvSpec) -> dict[str, int]:
    """What the actor takes of a second device's memory: no more than learning does on the first."""
    return {f"second device: {name}": size for name, size in learning_bytes(config, spec).items()}
