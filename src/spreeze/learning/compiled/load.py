"""Loading a compiled update from its file."""

from __future__ import annotations

import os
import re
import shutil
from importlib.util import find_spec
from pathlib import Path
from zipfile import is_zipfile

import torch

from spreeze.learning.compiled.key import CPU_SUFFIX
from spreeze.learning.compiled.launches import Launches
from spreeze.learning.update import StepFunction
from spreeze.machine.facts import cache_folder


def loads_instantly(path: Path) -> bool:
    """Whether a compiled form loads in milliseconds; else it takes seconds of Python's imports."""
    return path.suffix == CPU_SUFFIX or is_zipfile(path)


def load(path: Path, device: torch.device) -> StepFunction:
    """A compiled update from its file."""
    if path.suffix == CPU_SUFFIX:
        # The loader itself: the function around it imports the whole compiler, five seconds in which
        # a learner on the same cores hardly gets on. This takes five milliseconds.
        loader = torch._C._aoti.AOTIModelPackageLoader(str(path), "model", False, 1, -1)
        _remove_what_was_unpacked()
        return lambda *inputs: loader.run(list(inputs))
    if is_zipfile(path):
        return Launches(path, device)
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(cache_folder() / "inductor"))
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")  # else it starts processes,
    torch.hub.tqdm.monitor_interval = 0  # type: ignore[attr-defined]  # and with a bar a thread
    from torch._inductor.standalone_compile import CompiledArtifact

    if find_spec("triton"):
        import spreeze.networks.fused  # noqa: F401  (its operators are called by name)
    step: StepFunction = CompiledArtifact.load(path=str(path), format="binary")
    return step


def _remove_what_was_unpacked() -> None:
    """The loader leaves a folder of temporary files: what is mapped from there needs no name any more."""
    mapped = Path("/proc/self/maps").read_text()
    for folder in set(re.findall(r"/\S*/aotinductor_\w+(?=/)", mapped)):
        shutil.rmtree(folder, ignore_errors=True)
