"""What a compiled update depends on, and so where it lies in the user's cache folder."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from spreeze.algos import algorithm_file, find_algorithm
from spreeze.algos.base import Algorithm, without_data
from spreeze.learning.replay import Replay
from spreeze.learning.two_devices.halves import ActorUpdater, CriticUpdater
from spreeze.learning.update import Part, init_state
from spreeze.learning.updater import Updater
from spreeze.machine.facts import cache_folder, cpu_name
from spreeze.networks import Arithmetic, unfused_arithmetic
from spreeze.rows import Placement, row_layout
from spreeze.spec import EnvSpec

CPU_SUFFIX, GPU_SUFFIX = ".pt2", ".bin"
COMPILED_PACKAGES = ("learning", "algos", "networks", "policy")
"""Whatever an update computes is in these packages, in `spec` and in `rows`."""


@dataclass(frozen=True, kw_only=True)
class CompileKey:
    """All that a compiled update depends on, as plain data."""

    algo: str
    hyper: dict[str, Any]
    spec: dict[str, Any]
    capacity: int
    batch_size: int
    device: str
    precision: str
    threads: int
    staged: bool = False
    """Whether batches come to the device ready drawn: the replay is out of its reach."""
    part: Part = "whole"
    """Both networks, or one of them on a device of its own."""

    def path(self) -> Path:
        """Where the compiled form lies, or will."""
        facts, own_file = dataclasses.asdict(self), algorithm_file(self.algo)
        facts["hyper"] = without_data(self.hyper, own=own_file is not None)
        facts["spec"] = {k: facts["spec"][k] for k in ("obs_shape", "action_shape", "num_actions")}
        facts["machine"] = (
            torch.cuda.get_device_name(self.device)
            if self.device.startswith("cuda")
            else cpu_name()
        )
        facts["torch"] = torch.__version__
        facts["source"] = _source(own_file)
        digest = hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:32]
        suffix = CPU_SUFFIX if self.device == "cpu" else GPU_SUFFIX
        return cache_folder() / "compiled" / f"{digest}{suffix}"

    @property
    def arithmetic(self) -> Arithmetic:
        """How the compiled networks compute, if all goes well."""
        plain = unfused_arithmetic(self.precision)
        if plain != "bf16" or self.device == "cpu" or find_spec("triton") is None:
            return plain
        return "fused_bf16" if torch.cuda.get_device_capability(self.device) >= (8, 0) else plain

    def algorithm(self, arithmetic: Arithmetic) -> Algorithm:
        """The algorithm whose update it is."""
        entry = find_algorithm(self.algo)
        return entry.build(entry.config(**self.hyper), EnvSpec.from_json(self.spec), arithmetic)

    def updater(self, arithmetic: Arithmetic, hollow: bool = False) -> Updater:
        """An updater of the same shapes, with an empty replay; a hollow one is just for tracing."""
        spec = EnvSpec.from_json(self.spec)
        device = torch.device(self.device)
        algorithm = self.algorithm(arithmetic)
        layout = row_layout(spec, algorithm.config.row_format())
        state, rates = init_state(algorithm, 0, device), (1e-3, 0.01)
        if self.part == "actor":
            return ActorUpdater(algorithm, layout, device, state, self.batch_size, rates)
        placement: Placement = "host" if self.staged else "gpu"
        prioritised = algorithm.config.priorities()[0] > 0
        replay = Replay(
            layout, self.capacity, device, placement, hollow=hollow, prioritised=prioritised
        )
        kind = CriticUpdater if self.part == "critic" else Updater
        return kind(algorithm, replay, state, self.batch_size, rates)


def set_precision(precision: str) -> None:
    """How float32 matrix products are computed on a GPU: exactly, or with TF32 tensor cores."""
    torch.set_float32_matmul_precision("highest" if precision == "float32" else "high")


def _source(more: Path | None) -> str:
    """A digest of the code that is compiled, of a user's own too: a change in it must not find an old form."""
    root = Path(__file__).parents[2]
    ours = [
        path for package in COMPILED_PACKAGES for path in sorted((root / package).rglob("*.py"))
    ]
    files = [root / "spec.py", root / "rows.py", *ours, *([more] if more else [])]
    return hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest()


def draft_path(path: Path, pid: int) -> Path:
    """Where a process writes what will lie at `path` when it is whole."""
    return path.with_name(f"{pid}-{path.name}")
