"""Compiling the update: in a process of its own, kept on disk, swapped in when it is ready.

Compilation takes 10 to 60 seconds and all of Python's attention, so it never happens in the learner.
A process of its own traces the very function that the learner runs, compiles it whole and stores
the result in the user's cache folder under a name that says everything it depends on. The learner
loads it in a thread, checks one update against the plain one, and goes on with it. The next run of
the same shapes finds it there, and need not check it again (`roles.swap.Proof`).
"""

from __future__ import annotations

import dataclasses
import faulthandler
import hashlib
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import threading
import time
import traceback
import warnings
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from zipfile import is_zipfile

import torch
from torch import Tensor

from spreeze.launches import Launches
from spreeze.lifeline import die_with_parent
from spreeze.networks import Arithmetic, plain_arithmetic
from spreeze.placement import cache_folder, compiler, other_cores
from spreeze.recipe import CPU_SUFFIX, Recipe, set_precision
from spreeze.recording import save, watch_kernels
from spreeze.updater import Updater
from spreeze.updates import Step, StepFunction

CLOSE, ROUGH = 1e-2, 3.0
"""How far a compiled update may be from the exact one: this share of each vector's length, and this
multiple of the plain one's own distance from it, as both may compute in bfloat16."""
GROSS = 0.5
"""The share where the one row of a hollow replay is the whole batch: there errors do not average out."""
SWITCH_S = 0.0005
"""How long a thread that loads keeps Python to itself while another one learns."""


class Compilation:
    """One compiled update on its way: `poll` it now and then."""

    def __init__(self, recipe: Recipe, log: Path, wait_s: float = 0) -> None:
        """Take it from the cache at once; or `poll` starts to compile in the background, after `wait_s`."""
        self.recipe = recipe
        self.step: StepFunction | None = None
        """The compiled form, when it is ready and loaded."""
        self.problem: str | None = None
        """Why there will be none, in words for the user."""
        self.path = recipe.path()
        """Where it lies."""
        self.digest = ""
        """Of the file that `step` came from: another run may replace it."""
        self._start_s: float | None = None
        """When to start compiling, until that is done."""
        self._process: subprocess.Popen[bytes] | None = None
        self._thread: threading.Thread | None = None
        self._log = log
        if self.path.exists():
            if loads_at_once(self.path):
                self._load()
            else:
                self._load_aside()
        else:
            if recipe.device == "cpu" and compiler() is None:
                self.problem = "no C++ compiler was found (Debian: apt install g++)"
                return
            self._start_s = time.monotonic() + wait_s

    def poll(self) -> bool:
        """Whether it is settled: `step` or `problem` is there."""
        if self.step is not None or self.problem is not None:
            return True
        if self._start_s is not None:
            if time.monotonic() < self._start_s:
                return False
            self._start_s = None
            if not self.path.exists():  # another run may have compiled it meanwhile
                try:
                    self._process = self._start()
                except OSError as error:
                    self.problem = f"compilation could not be started ({error})"
                    return True
        if self._process is not None:
            code = self._process.poll()
            if code is None:
                return False
            draft = _draft(self.path, self._process.pid)
            self._process = None
            if code != 0 or not self.path.exists():
                draft.unlink(missing_ok=True)
                self.problem = f"compilation failed; {self._log} says why"
                return True
        if self._thread is None:
            self._load_aside()
        return False

    def close(self) -> None:
        """Give up what is still going on, or has not begun."""
        self._start_s = None
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        if self._thread is not None:
            self._thread.join()

    def _start(self) -> subprocess.Popen[bytes]:
        cores = ",".join(map(str, other_cores()))
        command = [sys.executable, "-m", "spreeze.compiling", str(os.getpid()), cores]
        self._log.parent.mkdir(parents=True, exist_ok=True)
        with self._log.open("ab") as log:
            process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=log, stderr=log)
        assert process.stdin is not None
        process.stdin.write(json.dumps(dataclasses.asdict(self.recipe)).encode())
        process.stdin.close()
        return process

    def _load_aside(self) -> None:
        def load_on_other_cores() -> None:
            os.sched_setaffinity(0, other_cores())  # of this thread alone
            self._load()

        self._thread = threading.Thread(
            target=load_on_other_cores, name="load compiled", daemon=True
        )
        self._thread.start()

    def _load(self) -> None:
        before_s = sys.getswitchinterval()
        sys.setswitchinterval(SWITCH_S)
        try:
            content = self.path.read_bytes()
            self.step = load(self.path, torch.device(self.recipe.device))
            if self.path.read_bytes() == content:
                self.digest = hashlib.sha256(content).hexdigest()
        except Exception as error:  # whatever is wrong with it: the plain way works
            self.path.unlink(missing_ok=True)
            self.problem = (
                f"the compiled form could not be loaded ({type(error).__name__}: {error})"
            )
        finally:
            sys.setswitchinterval(before_s)


def loads_at_once(path: Path) -> bool:
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
        import spreeze.fused  # noqa: F401  (its operators are called by name)
    step: StepFunction = CompiledArtifact.load(path=str(path), format="binary")
    return step


def _remove_what_was_unpacked() -> None:
    """The loader leaves a folder of temporary files: what is mapped from there needs no name any more."""
    mapped = Path("/proc/self/maps").read_text()
    for folder in set(re.findall(r"/\S*/aotinductor_\w+(?=/)", mapped)):
        shutil.rmtree(folder, ignore_errors=True)


def disagreement(
    recipe: Recipe, updater: Updater, step: StepFunction, close: float = CLOSE
) -> str | None:
    """What is wrong with one update by `step`, compared with the plain one and an exact one."""
    inputs = updater.inputs(updater.batch_size)
    exact = Step(recipe.algorithm("float32"), updater.layout, updater.part)
    with torch.no_grad():
        results = zip(exact(*inputs), updater.plain(*inputs), step(*inputs), strict=True)
        names = (*updater.plain.names, "metrics", *updater.plain.extras)
        for name, (right, plain, ours) in zip(names, results, strict=True):
            off, usual = _distance(ours, right), _distance(plain, right)
            length = float(right.float().norm())
            if not off <= close * length + ROUGH * usual + 1e-6:
                return f"{name} of length {length:.3g} is off by {off:.3g}, plain by {usual:.3g}"
    return None


def _distance(a: Tensor, b: Tensor) -> float:
    return float((a - b).float().norm())


def compile_step(recipe: Recipe) -> None:
    """Trace, compile whole, store; with kernels of our own if the device takes them."""
    plain = plain_arithmetic(recipe.precision)
    for arithmetic in dict.fromkeys((recipe.arithmetic, plain)):
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # the compiler's own, nobody here can act on them
                _compile(recipe, arithmetic)
            return
        except Exception:
            if arithmetic == plain:
                raise
            traceback.print_exc()


def _draft(path: Path, pid: int) -> Path:
    """Where a process writes what will lie at `path` when it is whole."""
    return path.with_name(f"{pid}-{path.name}")


def _compile(recipe: Recipe, arithmetic: Arithmetic) -> None:
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(cache_folder() / "inductor")
    if platform.machine() == "x86_64":
        # Every compiler knows AVX, and the CPU says which it has: to try each out takes seconds.
        os.environ.setdefault("TORCHINDUCTOR_VEC_ISA_OK", "1")
    torch.set_num_threads(recipe.threads)
    set_precision(recipe.precision)
    if (device := torch.device(recipe.device)).index is not None:
        torch.cuda.set_device(device)
    path = recipe.path()
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = _draft(path, os.getpid())
    updater = recipe.updater(arithmetic, hollow=True)  # the learner has the memory
    if path.suffix == CPU_SUFFIX:
        _compile_for_cpu(updater, draft)
    else:
        _compile_for_gpu(recipe, updater, draft)
    draft.replace(path)


def _trace(updater: Updater) -> tuple[torch.fx.GraphModule, tuple[Tensor, ...]]:
    from torch.fx.experimental.proxy_tensor import make_fx

    inputs = updater.inputs(updater.batch_size)
    with torch.no_grad():
        return make_fx(updater.plain)(*inputs), inputs


def _compile_for_cpu(updater: Updater, draft: Path) -> None:
    import torch._inductor

    traced, inputs = _trace(updater)
    exported = torch.export.export(traced, inputs, strict=False)
    torch._inductor.aoti_compile_and_package(exported, package_path=str(draft))
    load(draft, updater.device)(*inputs)  # where this crashes, it must not be the learner that does


def _compile_for_gpu(recipe: Recipe, updater: Updater, draft: Path) -> None:
    import torch._inductor

    reference = recipe.updater(plain_arithmetic(recipe.precision), hollow=True)
    with watch_kernels() as binaries, torch._inductor.config.patch(_inductor_options()):
        traced, inputs = _trace(updater)
        artifact = torch._inductor.standalone_compile(
            traced, list(inputs), dynamic_shapes="from_example_inputs"
        )
        if wrong := disagreement(recipe, reference, artifact, GROSS):
            raise RuntimeError(f"the compiled update gives other numbers: {wrong}")
        try:
            with torch.no_grad():
                save(artifact, inputs, binaries, draft)
            if wrong := disagreement(recipe, reference, load(draft, reference.device), GROSS):
                raise RuntimeError(f"the list of its launches gives other numbers: {wrong}")
        except Exception:  # another driver, or kernels of another make: the slow form works
            traceback.print_exc()
            artifact.save(path=str(draft), format="binary")


def _inductor_options() -> dict[str, Any]:
    """What the compiler does better for updates than by default, as far as this version has it."""
    from torch._inductor import config

    wanted = {
        "combo_kernels": True,  # small kernels side by side: 28 of them become 22
        "unroll_reductions_threshold": 32,  # the shares of a gradient are added inside Adam's kernel
        "triton.mix_order_reduction": False,  # an assertion in torch 2.11 fails on ensembles
        "use_static_cuda_launcher": False,  # it loads kernels where `watch_kernels` does not look
    }
    known = config.get_config_copy()
    return {name: value for name, value in wanted.items() if name in known}


if __name__ == "__main__":
    faulthandler.enable()  # so that the log says where it crashed
    die_with_parent(int(sys.argv[1]))
    os.sched_setaffinity(0, map(int, sys.argv[2].split(",")))  # not those of the learner alone
    compile_step(Recipe(**json.load(sys.stdin)))
