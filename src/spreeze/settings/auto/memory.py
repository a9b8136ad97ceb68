"""What a run keeps in memory, where, and whether it fits."""

from __future__ import annotations

from dataclasses import dataclass, replace

from spreeze.machine.facts import Machine
from spreeze.rows import Layout, row_layout
from spreeze.settings.auto.devices import gpu_index
from spreeze.settings.auto.resolver import AutoResolver
from spreeze.settings.config import Config, resolved
from spreeze.spec import EnvSpec

USUAL_CAPACITY = 1_000_000
FIRST_FILMS = 8
"""Films before the first update."""
FRESH_BATCHES = 4
"""Batches of segments in the replay: segments are only useful while they are new."""
GPU_SHARE, LOCKED_SHARE = 0.9, 0.5
"""The largest share of free GPU memory that a run takes, and of free host memory that it page-locks."""
NETWORK_COPIES, ACTIVATION_COPIES = (
    16,
    24,
)  # parameters, targets, moments, gradients, last good state; both passes
EXCHANGE_SLOTS = 5  # chunks of rows on each of two devices: some in transit, one in use
CUDA_BYTES = 1 << 30  # CUDA itself, its libraries and graphs, in learner and compiler
SAMPLER_BYTES, LEARNER_BYTES = 100 << 20, 700 << 20


def choose_replay(resolver: AutoResolver, spec: EnvSpec, machine: Machine) -> None:
    """Choose how many rows are kept, where, and how many there have to be before the first update."""
    config, form = resolver.config, resolver.config.hyper.row_format()
    layout = row_layout(spec, form)
    if form.segment > 1:
        rows = max(100, FRESH_BATCHES * resolved(config.learner.batch_size))
        resolver.choose("replay.capacity", rows, "only the newest segments are learned from")
    if resolver.on_gpu:
        _choose_replay_for_gpu(resolver, layout, spec, machine)
    else:
        size, host = layout.drawn_bytes, machine.memory_bytes
        reason = f"{size} bytes each, {host / 2**30:.0f} GiB free"
        resolver.choose("replay.capacity", min(USUAL_CAPACITY, int(host / 4 / size)), reason)
        resolver.choose("replay.placement", "host", "the networks train on the CPU")
    fewest, capacity = 1000 // form.segment, resolved(resolver.config.replay.capacity)
    if layout.drawn_steps > 1:  # transitions of one film resemble each other
        fewest = FIRST_FILMS * layout.drawn_steps
    warmup = min(max(resolved(config.learner.batch_size), fewest), capacity)
    resolver.choose("learner.warmup_rows", warmup, "at least a batch of random actions")


def _choose_replay_for_gpu(
    resolver: AutoResolver, layout: Layout, spec: EnvSpec, machine: Machine
) -> None:
    """Choose capacity and placement for a learner on a GPU: the fastest memory with room."""
    config, size = resolver.config, layout.drawn_bytes
    ranks = config.num_ranks
    gpus = [gpu_index(name) or 0 for name in config.devices[:ranks]]
    free = min(machine.gpus[index].memory_bytes // gpus.count(index) for index in gpus)
    room = ranks * (int(free * GPU_SHARE) - sum(learning_bytes(config, spec).values()))
    locked = int(machine.memory_bytes * LOCKED_SHARE)
    on_gpu = config.replay.placement in ("auto", "gpu")
    where, budget = ("GPU", room) if on_gpu else ("host", locked)
    slack = ranks * layout.slack_rows * layout.row_bytes
    rows = min(USUAL_CAPACITY, max(1000, (budget - slack) // size))
    reason = f"{size} bytes each, room for {budget / 2**30:.1f} GiB in {where} memory"
    needed = resolver.choose("replay.capacity", rows, reason) * size + slack
    said, left = f"{needed / 2**30:.1f} GiB", f"{max(room, 0) / 2**30:.1f} GiB of GPU memory"
    # The GPU has to read priorities, and frames.
    must_read = config.hyper.prioritised or bool(spec.images)
    if needed <= room:
        resolver.choose("replay.placement", "gpu", f"{said}, and there is room for {left}")
    elif needed <= locked or must_read:
        reason = f"{said} do not fit in {left}, but in half of the free host memory"
        resolver.choose("replay.placement", "pinned", reason)
    else:
        reason = f"{said} fit neither in {left} nor in half of the free host memory"
        resolver.choose("replay.placement", "host", reason)


def learning_bytes(config: Config, spec: EnvSpec) -> dict[str, int]:
    """What training takes of a device's memory, without the replay."""
    widths = config.hyper.widths(), config.hyper.policy_form(spec).hidden
    forms = [replace(config.hyper.policy_form(spec), hidden=hidden) for hidden in widths]
    numbers = max(form.size(spec) for form in forms) * 3  # actor and two critics
    rows = resolved(config.learner.batch_size) * config.hyper.row_format().segment
    rows //= config.num_ranks
    units = rows * max(map(sum, widths))
    exchanged = {}
    if config.is_split:
        exchanged["rows for the actor"] = EXCHANGE_SLOTS * _chunk_bytes(config, spec)
    return {
        **exchanged,
        "networks": numbers * 4 * NETWORK_COPIES,
        "activations": units * 4 * ACTIVATION_COPIES,
        **({} if config.devices[0] == "cpu" else {"CUDA": CUDA_BYTES}),
    }


def _chunk_bytes(config: Config, spec: EnvSpec) -> int:
    """Bytes of the rows that a device learns from between two publications."""
    rows = resolved(config.learner.updates_per_publish) * resolved(config.learner.batch_size)
    rows //= config.num_ranks
    return rows * row_layout(spec, config.hyper.row_format()).row_bytes


@dataclass(frozen=True)
class MemoryNeed:
    """What a run needs of one memory."""

    where: str
    gpu: int | None
    """Which GPU's memory; None for the host's."""
    parts: dict[str, int]
    """Bytes by purpose."""

    def problem(self, machine: Machine) -> str | None:
        """Why it does not fit, or None."""
        free = machine.memory_bytes if self.gpu is None else machine.gpus[self.gpu].memory_bytes
        total = sum(self.parts.values())
        if total <= free:
            return None
        table = ", ".join(f"{name} {size / 2**30:.2f}" for name, size in self.parts.items())
        return (
            f"this run needs {total / 2**30:.1f} GiB of {self.where} ({table} GiB) and "
            f"{free / 2**30:.1f} GiB are free. Lower --replay.capacity, --learner.batch-size "
            "or --sampler.processes."
        )


def learner_space(config: Config, spec: EnvSpec, wires_bytes: int) -> int:
    """Address space of the learner, the largest process of a run: its code, and what it keeps on the host."""
    host = memory_needs(config, spec, wires_bytes)[-1]
    return sum(host.parts.values()) - sum(_num_workers(config)) * SAMPLER_BYTES


def _num_workers(config: Config) -> tuple[int, int]:
    """How many samplers and evaluators there are."""
    evaluators = min(resolved(config.evaluator.processes), config.evaluator.episodes)
    return resolved(config.sampler.processes), evaluators


def memory_needs(config: Config, spec: EnvSpec, wires_bytes: int) -> list[MemoryNeed]:
    """What a run needs of each GPU and of the host; `wires_bytes` is its shared memory."""
    samplers, evaluators = _num_workers(config)
    capacity = resolved(config.replay.capacity)
    row_bytes = row_layout(spec, config.hyper.row_format()).drawn_bytes
    host = {
        "lanes and weights": wires_bytes,
        f"{samplers} samplers": samplers * SAMPLER_BYTES,
        f"{evaluators} evaluators": evaluators * SAMPLER_BYTES,
        "learner": LEARNER_BYTES,
    }
    ranks = config.num_ranks
    needs: list[MemoryNeed] = []
    on_gpu, place = config.devices[0] != "cpu", config.replay.placement
    learning = learning_bytes(config, spec)
    replay = {f"replay of {capacity:,} transitions": capacity * row_bytes // ranks}
    on_host = {} if on_gpu and place == "gpu" else replay
    if not on_gpu:
        on_host = replay | learning
    elif place == "gpu":
        learning = replay | learning
    elif place == "host":
        learning["batches"] = _chunk_bytes(config, spec)
        on_host = replay | {"batches": learning["batches"]}
    host |= {part: ranks * size for part, size in on_host.items()}
    if on_gpu:
        where = "GPU memory" if ranks == 1 else "memory on each GPU"
        needs = [MemoryNeed(where, gpu_index(name), learning) for name in config.devices[:ranks]]
    for name in config.devices[ranks:]:  # the actor takes no more than training does on the first
        sizes = learning_bytes(config, spec).items()
        actor = {f"second device: {part}": size for part, size in sizes}
        if name == "cpu":
            host |= actor
        else:
            needs.append(MemoryNeed("the actor's GPU memory", gpu_index(name), actor))
    return [*needs, MemoryNeed("memory", None, host)]
