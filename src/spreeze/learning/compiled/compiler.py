"""Compiling the update: in a process of its own, kept on disk, swapped in when it is ready.

Compilation takes 10 to 60 seconds and all of Python's attention, so it never happens in the learner.
A process of its own traces the very function that the learner runs, compiles it whole and stores
the result in the user's cache folder under a name that says everything it depends on. The learner
loads it in a thread, checks one update against the plain one, and goes on with it. The next run of
the same shapes finds it there, and need not check it again (`roles.swap.Proof`).
"""

from __future__ import annotations

import faulthandler
import json
import os
import platform
import sys
import traceback
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from spreeze.learning.compiled.key import CPU_SUFFIX, CompileKey, draft_path, set_precision
from spreeze.learning.compiled.load import load
from spreeze.learning.compiled.recording import save, watch_kernels
from spreeze.learning.compiled.verify import GROSS, find_mismatch
from spreeze.learning.updater import Updater
from spreeze.machine.facts import cache_folder
from spreeze.machine.lifeline import die_with_parent
from spreeze.networks import Arithmetic, unfused_arithmetic


def compile_step(key: CompileKey) -> None:
    """Trace, compile whole, store; with kernels of our own if the device takes them."""
    plain = unfused_arithmetic(key.precision)
    for arithmetic in dict.fromkeys((key.arithmetic, plain)):
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # the compiler's own, nobody here can act on them
                _compile(key, arithmetic)
            return
        except Exception:
            if arithmetic == plain:
                raise
            traceback.print_exc()


def _compile(key: CompileKey, arithmetic: Arithmetic) -> None:
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(cache_folder() / "inductor")
    if platform.machine() == "x86_64":
        # Every compiler knows AVX, and the CPU says which it has: to try each out takes seconds.
        os.environ.setdefault("TORCHINDUCTOR_VEC_ISA_OK", "1")
    torch.set_num_threads(key.threads)
    set_precision(key.precision)
    if (device := torch.device(key.device)).index is not None:
        torch.cuda.set_device(device)
    path = key.path()
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = draft_path(path, os.getpid())
    updater = key.updater(arithmetic, hollow=True)  # the learner has the memory
    if path.suffix == CPU_SUFFIX:
        _compile_for_cpu(updater, draft)
    else:
        _compile_for_gpu(key, updater, draft)
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


def _compile_for_gpu(key: CompileKey, updater: Updater, draft: Path) -> None:
    import torch._inductor

    reference = key.updater(unfused_arithmetic(key.precision), hollow=True)
    with watch_kernels() as binaries, torch._inductor.config.patch(_inductor_options()):
        traced, inputs = _trace(updater)
        artifact = torch._inductor.standalone_compile(
            traced, list(inputs), dynamic_shapes="from_example_inputs"
        )
        if wrong := find_mismatch(key, reference, artifact, GROSS):
            raise RuntimeError(f"the compiled update gives other numbers: {wrong}")
        try:
            with torch.no_grad():
                save(artifact, inputs, binaries, draft)
            if wrong := find_mismatch(key, reference, load(draft, reference.device), GROSS):
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
    compile_step(CompileKey(**json.load(sys.stdin)))
