"""Which form of the update runs: swapped for a compiled one, another batch size or less memory, in mid-run."""

from __future__ import annotations

import gc
import json
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import torch

from spreeze.algos import algorithm_file
from spreeze.learning.compiled.job import Compilation
from spreeze.learning.compiled.key import CompileKey
from spreeze.learning.compiled.load import loads_instantly
from spreeze.learning.compiled.verify import find_mismatch
from spreeze.learning.replay import Replay
from spreeze.learning.two_devices.pair import TwoDeviceUpdater
from spreeze.learning.updater import Updater, out_of_memory
from spreeze.roles.context import Context
from spreeze.roles.learner.compile_key import compile_key
from spreeze.rows import PLACEMENTS
from spreeze.settings.config import resolved
from spreeze.store.files import write_atomic

Learning = Updater | TwoDeviceUpdater
"""On one device or on two."""
SMALLEST_BATCH = 256
"""Out of GPU memory, batches are halved down to this."""
PATIENCE_S = 10.0
"""Where the learner shares its cores, it learns this long before anything is compiled beside it: the compiler
takes its share of them, and what is solved by then is solved sooner without."""


class UpdateRunner:
    """Runs the update in the form that fits: compiled when that is ready, with the batch size that is
    asked for, and with less memory where there is not enough."""

    def __init__(self, ctx: Context, updater: Learning, replay: Replay) -> None:
        """Take what is compiled already; anything else waits for the first update."""
        self._ctx = ctx
        self._updater = updater
        self._replay = replay
        self._running: dict[int, list[Compilation]] = {}
        """By batch size: a compilation for each part."""
        self._verdicts: dict[int, int] = {}
        """By batch size: the word `compiled`, once that is settled."""
        # One process that takes turns must not change its arithmetic at a random moment.
        self._wanted = ctx.config.learner.compile and not ctx.config.serial
        self._alone_until_s = 0.0
        """Set by the first update."""
        size = resolved(ctx.config.learner.batch_size)
        self._largest = 1 << 62
        """Batch size that is known to fit."""
        paths = [key.path() for key in self._keys(size)] if self._wanted else []
        if paths and all(path.exists() for path in paths):
            if not all(map(loads_instantly, paths)):
                # The plain form first: its preparation is slow beside a thread that loads.
                with _shortage_allowed():
                    updater.prepare()
            self._compilations(size)

    def run(self) -> None:
        """One chunk of updates; out of GPU memory, what needs less of it."""
        self._alone_until_s = self._alone_until_s or time.monotonic() + PATIENCE_S
        while True:
            try:
                self.poll()
                self._updater.run()
                return
            except RuntimeError as error:
                if not out_of_memory(error):
                    raise
                failure = error.with_traceback(None)  # which would keep tensors
            if not self._need_less():
                raise failure

    def poll(self) -> None:
        """Look at the batch size that is asked for, and at what has been compiled."""
        updater, counters, verdicts = self._updater, self._ctx.counters, self._verdicts
        size = min(int(self._ctx.control.supervisor["batch_size"]), self._largest)
        if self._wanted and size not in verdicts:
            compilations = self._compilations(size)
            if all([compilation.poll() for compilation in compilations]):
                verdicts[size] = self._judge(size, compilations)
            elif updater.batch_size in verdicts and updater.batch_size <= self._largest:
                size = updater.batch_size  # it stays until the new one is compiled, too
        updater.batch_size = counters["batch_size"] = size
        counters["compiled"] = verdicts.get(size, 0)

    def close(self) -> None:
        """End what is still being compiled, and what works on another device."""
        for compilations in self._running.values():
            for compilation in compilations:
                compilation.close()
        self._updater.pause()

    def _judge(self, size: int, compilations: list[Compilation]) -> int:
        """Take what is compiled into use if it is right; returns the word `compiled`."""
        self._updater.batch_size = size
        self._updater.pause()
        verdict = 1
        for part, compilation in zip(self._updater.parts, compilations, strict=True):
            step, problem = compilation.step, compilation.problem
            if step is not None:
                proof = VerificationRecord(compilation)
                if known := proof.metric_names():
                    part.plain.metric_names, wrong = known, None
                else:
                    wrong = find_mismatch(compilation.key, part, step)
                if wrong is None:
                    if not known:
                        proof.write(part.plain.metric_names)
                    part.use(size, step)
                    found = "were found right before" if known else "are right"
                    self._ctx.note(f"compiled updates of batch {size} are loaded and {found}")
                    continue
                problem = f"the compiled update differs from the plain one: {wrong}"
            print(problem)
            verdict = 2 if "C++" in (problem or "") else 3
        return verdict

    def _keys(self, size: int) -> list[CompileKey]:
        """What each part of the update depends on."""
        config, spec, staged = self._ctx.config, self._ctx.spec, self._replay.staged
        return [compile_key(config, spec, size, staged, x.part) for x in self._updater.parts]

    def _compilations(self, size: int) -> list[Compilation]:
        if size not in self._running:
            log = self._ctx.run.log("compiler")
            config = self._ctx.config
            beside = config.devices[0] == "cpu" and config.cores == "shared"
            wait_s = max(0.0, self._alone_until_s - time.monotonic()) if beside else 0
            self._running[size] = [Compilation(x, log, wait_s) for x in self._keys(size)]
        return self._running[size]

    def _need_less(self) -> bool:
        """The replay leaves the GPU, or else batches are halved; False if there is no way left."""
        replay, updater, counters = self._replay, self._updater, self._ctx.counters
        updater.forget()
        free_memory(replay.device)
        if replay.placement == "gpu" and _left_gpu(replay):
            counters["replay_placement"] = PLACEMENTS.index(replay.placement)
            print("out of GPU memory: the replay is in page-locked host memory from now on")
        elif updater.batch_size > SMALLEST_BATCH:
            self._largest = max(updater.batch_size // 2, SMALLEST_BATCH)
            print(f"out of GPU memory: a batch has {self._largest} transitions from now on")
        else:
            return False
        counters["out_of_memory"] += 1
        free_memory(replay.device)
        return True


class VerificationRecord:
    """That a compiled update was found right: a file beside it, so that later runs need not look again.

    To look means a plain update first, and on a GPU most of a second until all its kernels are there.
    Of an algorithm of the user's own nobody knows all that it computes with: it is looked at each time.
    """

    def __init__(self, compilation: Compilation) -> None:
        """Of a compiled update that is loaded."""
        self._path = compilation.path.with_suffix(".right")
        ours = algorithm_file(compilation.key.algo) is None
        self._digest = compilation.digest if ours else ""

    def metric_names(self) -> tuple[str, ...] | None:
        """The names of its metrics, which else the plain update says, if this very form was found right."""
        try:
            found = json.loads(self._path.read_text())
            right = bool(self._digest) and found["form"] == self._digest
            return tuple(found["metrics"]) if right else None
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def write(self, metric_names: tuple[str, ...]) -> None:
        """It was found right."""
        if self._digest:
            with suppress(OSError):  # a full disk: the next run looks again
                write_atomic(self._path, {"form": self._digest, "metrics": metric_names})


def _left_gpu(replay: Replay) -> bool:
    """Move the rows to host memory, if it has room for them."""
    with _shortage_allowed():
        replay.leave_gpu()
    return replay.placement != "gpu"


@contextmanager
def _shortage_allowed() -> Iterator[None]:
    """Go on when memory is short; whoever needs it finds out."""
    try:
        yield
    except RuntimeError as error:
        if not out_of_memory(error):
            raise


def free_memory(device: torch.device) -> None:
    """Give back what nobody uses any more."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
