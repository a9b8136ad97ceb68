"""What a compiled update depends on, and so its name in the user's cache folder."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from spreeze.algos import algorithm_file, build_algorithm, find_algorithm
from spreeze.algos.base import AlgoConfig, Algorithm, update_knobs
from spreeze.learning.replay import Replay, ReplayShape
from spreeze.learning.state import Part, init_state
from spreeze.learning.two_devices.critic_actor import ActorUpdater, CriticUpdater
from spreeze.learning.updater import Updater, UpdateSetup
from spreeze.machine.cache import cache_folder
from spreeze.machine.facts import cpu_name
from spreeze.networks import Arithmetic, unfused_arithmetic
from spreeze.rows import Placement, row_layout
from spreeze.spec import EnvSpec

SOURCE_ROOT = Path(__file__).parents[2]
COMPILED_SOURCES = (
    *("learning/**/*.py", "algos/**/*.py", "networks/**/*.py", "policy/**/*.py"),
    *("errors.py", "images.py", "knobs.py", "rows.py", "spec.py", "text.py", "user_code.py"),
)
"""Every module that an update imports. A change in any of them makes compiled updates out of date."""
EXAMPLE_RATES = (1e-3, 0.01)


SPEC_FACTS = ("obs_shape", "action_shape", "num_actions", "images", "stack")
"""What an update depends on, of the environment."""


@dataclass(frozen=True, kw_only=True)
class CompileKey:
    """Everything that a compiled update depends on, as plain data."""

    algo: str
    hyper: dict[str, Any]
    spec: dict[str, Any]
    capacity: int
    batch_size: int
    device: str
    precision: str
    threads: int
    sampled_on_host: bool = False
    """Whether the host samples the batches, because the device cannot read the replay."""
    part: Part = "whole"
    """What the device updates: everything, or one of the two networks."""
    num_ranks: int = 1
    """How many ranks share each batch; `capacity` is that of one of them."""
    fused: bool = False
    """Whether our own compiler makes it, within a second; always on a CPU. Otherwise torch's does."""

    def path(self) -> Path:
        """Where the compiled update is, or will be."""
        facts, own_file = dataclasses.asdict(self), algorithm_file(self.algo)
        kind = find_algorithm(self.algo).config
        facts["hyper"] = update_knobs(kind, self.hyper, own=own_file is not None)
        facts["spec"] = {k: facts["spec"][k] for k in SPEC_FACTS}
        facts["machine"] = (
            torch.cuda.get_device_name(self.device)
            if self.device.startswith("cuda")
            else cpu_name()
        )
        facts["torch"] = torch.__version__
        facts["source"] = _source_digest(own_file)
        digest = hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:32]
        return cache_folder() / "compiled" / f"{digest}.bin"

    @property
    def arithmetic(self) -> Arithmetic:
        """How the compiled networks compute, if the device supports it."""
        plain = unfused_arithmetic(self.precision)
        if plain != "bf16" or self.device == "cpu" or find_spec("triton") is None:
            return plain
        return "fused_bf16" if torch.cuda.get_device_capability(self.device) >= (8, 0) else plain

    def algorithm(self, arithmetic: Arithmetic) -> Algorithm:
        """The algorithm whose update it is."""
        return build_algorithm(self.algo, self.hyper, EnvSpec.from_json(self.spec), arithmetic)

    def updater(self, arithmetic: Arithmetic, shape_only: bool = False) -> Updater:
        """An updater of the same shapes with an empty replay; `shape_only`: without memory, for tracing."""
        device, algorithm = torch.device(self.device), self.algorithm(arithmetic)
        layout = row_layout(EnvSpec.from_json(self.spec), algorithm.config.row_format())
        for_actor = self.part == "actor"  # which never reads the replay
        placement: Placement = "host" if self.sampled_on_host or for_actor else "gpu"
        prioritised = algorithm.config.prioritised and not for_actor
        kind = ReplayShape if shape_only else Replay
        capacity = 1 if for_actor else layout.rows_for(self.capacity)
        replay = kind(layout, capacity, device, placement, prioritised=prioritised)
        state = init_state(algorithm, 0, device)
        setup = UpdateSetup(
            algorithm, replay, state, self.batch_size, EXAMPLE_RATES, num_ranks=self.num_ranks
        )
        if for_actor:
            return ActorUpdater(setup, device)
        return CriticUpdater(setup) if self.part == "critic" else Updater(setup)


def ours_is_fastest(config: AlgoConfig, spec: EnvSpec, device: str) -> bool:
    """Whether our own compiler's form of an update is at least as fast as torch's (docs/updates.md).

    With images both call the same convolutions, but only torch's has a fast maximum over neighbouring pixels.
    """
    encoder = config.image_encoder(spec)
    pools = encoder is not None and encoder.pools
    return device == "cpu" or config.layer_norm or (bool(spec.images) and not pools)


def set_precision(precision: str) -> None:
    """How a GPU computes float32 matrix products and convolutions: exactly, or with TF32 tensor cores."""
    torch.set_float32_matmul_precision("highest" if precision == "float32" else "high")
    torch.backends.cudnn.allow_tf32 = precision != "float32"


def source_files() -> list[Path]:
    """The files of Spreeze that decide what an update computes."""
    return [path for pattern in COMPILED_SOURCES for path in sorted(SOURCE_ROOT.glob(pattern))]


def _source_digest(own_file: Path | None) -> str:
    """A digest of the code that is compiled, including the user's own algorithm."""
    files = [*source_files(), *([own_file] if own_file else [])]
    return hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest()


def draft_path(path: Path, pid: int) -> Path:
    """Where a process writes what will be at `path` when it is complete."""
    return path.with_name(f"{pid}-{path.name}")
