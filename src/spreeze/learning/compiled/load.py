"""Loads a compiled update from its file."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from zipfile import is_zipfile

import torch

from spreeze.learning.compiled.key import CompileKey
from spreeze.learning.compiled.launches import Launches
from spreeze.learning.fusion.fuse import is_fused, load_fused
from spreeze.learning.step import StepFunction
from spreeze.machine.cache import cache_folder


@dataclass(frozen=True)
class CompiledUpdate:
    """A compiled update, loaded."""

    key: CompileKey
    path: Path
    step: StepFunction
    digest: str
    """SHA-256 of the file it was loaded from; empty if another run replaced the file meanwhile."""


def load_compiled(key: CompileKey, path: Path) -> CompiledUpdate:
    """The compiled update at `path`."""
    content = path.read_bytes()
    step = load_step(path, torch.device(key.device))
    unchanged = path.read_bytes() == content
    return CompiledUpdate(key, path, step, hashlib.sha256(content).hexdigest() if unchanged else "")


def loads_instantly(path: Path) -> bool:
    """Whether a compiled update loads in milliseconds. Otherwise it takes seconds of Python imports."""
    return is_zipfile(path)


def load_step(path: Path, device: torch.device) -> StepFunction:
    """The function of a compiled update."""
    if is_fused(path):
        return load_fused(path, device)
    if is_zipfile(path):
        return Launches(path, device)
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(cache_folder() / "inductor"))
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")  # no worker processes
    torch.hub.tqdm.monitor_interval = 0  # type: ignore[attr-defined]  # no thread of tqdm
    from torch._inductor.standalone_compile import CompiledArtifact

    if find_spec("triton"):
        import spreeze.networks.fused  # noqa: F401  (registers operators that are called by name)
    step: StepFunction = CompiledArtifact.load(path=str(path), format="binary")
    return step
