"""Compiles the update for a GPU with torch's compiler. This module is the program of the compiler's process.

It takes 10 to 60 seconds and holds Python's lock, so it never happens in the learner. This
process traces the function that the learner runs, compiles it as a whole and stores the result in the
user's cache folder, under a name that is a digest of everything it depends on (`key`). The learner loads
it (`job`), compares one update with the plain one (`verify`) and uses it from then on. The next run of the
same shapes finds it in the cache, with a record that it was verified.
"""

from __future__ import annotations

import faulthandler
import json
import os
import sys
import traceback
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from spreeze.learning.compiled.job import fuse_step
from spreeze.learning.compiled.key import CompileKey, draft_path, set_precision
from spreeze.learning.compiled.load import load_step
from spreeze.learning.compiled.recording import save, watch_kernels
from spreeze.learning.compiled.verify import ONE_ROW_TOLERANCE, find_mismatch
from spreeze.learning.updater import Updater
from spreeze.machine.cache import cache_folder
from spreeze.machine.lifeline import die_with_parent
from spreeze.networks import Arithmetic, unfused_arithmetic
from spreeze.user_code import allow


def compile_step(key: CompileKey) -> None:
    """Trace, compile and store the update; with our own kernels if the device supports them."""
    if key.fused:
        fuse_step(key)
        return
    plain = unfused_arithmetic(key.precision)
    for arithmetic in dict.fromkeys((key.arithmetic, plain)):
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # torch's own: users cannot act on them
                _compile(key, arithmetic)
            return
        except Exception:
            if arithmetic == plain:
                raise
            traceback.print_exc()


def _compile(key: CompileKey, arithmetic: Arithmetic) -> None:
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(cache_folder() / "inductor")
    torch.set_num_threads(key.threads)
    set_precision(key.precision)
    if (device := torch.device(key.device)).index is not None:
        torch.cuda.set_device(device)
    path = key.path()
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = draft_path(path, os.getpid())
    updater = key.updater(arithmetic, shape_only=True)  # the learner needs the memory
    _compile_for_gpu(key, updater, draft)
    draft.replace(path)


def _trace(updater: Updater) -> tuple[torch.fx.GraphModule, tuple[Tensor, ...]]:
    from torch.fx.experimental.proxy_tensor import make_fx

    inputs = updater.inputs(updater.batch_size)
    with torch.no_grad():
        return make_fx(updater.plain)(*inputs), inputs


def _compile_for_gpu(key: CompileKey, updater: Updater, draft: Path) -> None:
    import torch._inductor

    reference = key.updater(unfused_arithmetic(key.precision), shape_only=True)
    with watch_kernels() as binaries, torch._inductor.config.patch(_inductor_options()):
        traced, inputs = _trace(updater)
        artifact = torch._inductor.standalone_compile(
            traced, list(inputs), dynamic_shapes="from_example_inputs"
        )
        if wrong := find_mismatch(key, reference, artifact, ONE_ROW_TOLERANCE):
            raise RuntimeError(f"the compiled update gives other numbers: {wrong}")
        try:
            with torch.no_grad():
                save(artifact, inputs, binaries, draft)
            stored = load_step(draft, reference.device)
            if wrong := find_mismatch(key, reference, stored, ONE_ROW_TOLERANCE):
                raise RuntimeError(f"the list of its launches gives other numbers: {wrong}")
        except Exception:
            # An unknown driver, or kernels not by Triton: store the form that loads slowly.
            traceback.print_exc()
            artifact.save(path=str(draft), format="binary")


def _inductor_options() -> dict[str, Any]:
    """Compiler options that make updates faster, as far as this version of torch has them."""
    from torch._inductor import config

    wanted = {
        "combo_kernels": True,  # merges small kernels: 28 become 22
        "unroll_reductions_threshold": 32,  # sums partial gradients inside Adam's kernel
        "triton.mix_order_reduction": False,  # an assertion in torch 2.11 fails on ensembles
        "use_static_cuda_launcher": False,  # it loads kernels past `watch_kernels`
    }
    known = config.get_config_copy()
    return {name: value for name, value in wanted.items() if name in known}


if __name__ == "__main__":
    faulthandler.enable()  # the log says where it crashed
    die_with_parent(int(sys.argv[1]))
    # This process inherited the learner's cores; use those that are left to the others.
    os.sched_setaffinity(0, map(int, sys.argv[2].split(",")))
    job = json.load(sys.stdin)
    allow(job["user_code"])
    compile_step(CompileKey(**job["key"]))
