"""Decides how updates run: plain or compiled, with which batch size, with how much memory."""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum, auto
from pathlib import Path

import torch

from spreeze.learning.compiled.job import Compilation, Refusal, RefusalReason
from spreeze.learning.compiled.key import CompileKey
from spreeze.learning.compiled.load import CompiledUpdate, load_step, loads_instantly
from spreeze.learning.compiled.verify import verify
from spreeze.learning.data_parallel.shards import AnyReplay
from spreeze.learning.updater import Updater, out_of_memory
from spreeze.learning.updaters import AnyUpdater
from spreeze.roles.context import Context
from spreeze.roles.learner.compile_key import compile_keys
from spreeze.rows import PLACEMENTS
from spreeze.settings.config import resolved
from spreeze.wires.control import CompileState

MIN_BATCH_SIZE = 256
"""Out of GPU memory, batches are halved down to this."""
UNLIMITED = 1 << 62
COMPILE_DELAY_S = 30.0
"""Delay before torch's compiler starts: for half a minute it takes cores from samplers, so short tasks finish
faster without it."""
FUSING_LIMIT_S = 5.0
"""How long the first update on a GPU waits for the fused form, which is ready sooner than plain kernels are loaded."""


class Form(Enum):
    """How updates of one batch size run."""

    PLAIN = auto()
    """Not compiled, and no compiled form is wanted."""
    COMPILING = auto()
    """Plain, until a compiled form is loaded and verified."""
    FUSED = auto()
    """Compiled by our own compiler and verified, until torch's has a form that is faster."""
    COMPILED = auto()
    """Compiled in the fastest form, and verified against the plain update."""
    NO_COMPILER = auto()
    """Plain: there is no C++ compiler."""
    REFUSED = auto()
    """Plain: compilation failed, or the compiled update gives other numbers."""
    OUT_OF_MEMORY = auto()
    """Not run at all: batches of this size do not fit into GPU memory."""


REPORTED = {
    Form.PLAIN: CompileState.PLAIN,
    Form.COMPILING: CompileState.PLAIN,
    Form.FUSED: CompileState.FUSED,
    Form.COMPILED: CompileState.COMPILED,
    Form.NO_COMPILER: CompileState.NO_CPP_COMPILER,
    Form.REFUSED: CompileState.REFUSED,
    Form.OUT_OF_MEMORY: CompileState.PLAIN,
}
"""How the control wire reports each form."""


class UpdateRunner:
    """Runs the update in the best form available, and decides which form that is.

    Each batch size has a form, which changes like this:

        PLAIN                                              if no compiled form is wanted
        COMPILING -> COMPILED | NO_COMPILER | REFUSED      otherwise; all three are final
        COMPILING -> FUSED -> COMPILED                     on a GPU
        any form  -> OUT_OF_MEMORY                         if GPU memory runs out at this size

    `_advance` makes all changes but the last. `_need_less` makes that one: it first moves the replay to
    the host; if that is not enough, it halves the batch size. While a new size is COMPILING, the
    previous size stays in use if it is not.
    """

    def __init__(self, ctx: Context, updater: AnyUpdater, replay: AnyReplay) -> None:
        """Start to load what is compiled already. Compiling waits for the first update."""
        self._ctx = ctx
        self._updater = updater
        self._replay = replay
        self._forms: dict[int, Form] = {}
        """By batch size."""
        self._compilations: dict[int, list[Compilation]] = {}
        """By batch size: one for each part of the update; none when all is decided."""
        # A serial run must repeat, so it must not change its arithmetic at a random moment.
        self._compile = ctx.config.learner.compile and not ctx.config.serial
        self._compile_from_s = 0.0
        """When torch's compiler may start; the first update sets it."""
        if self._compile:
            self._begin(resolved(ctx.config.learner.batch_size))

    def run(self) -> None:
        """One chunk of updates. If GPU memory is short, change to what needs less of it."""
        if not self._compile_from_s:
            self._compile_from_s = time.monotonic() + COMPILE_DELAY_S
            self._await_fused()
        while True:
            try:
                self.poll()
                self._updater.run()
                return
            except RuntimeError as error:
                if not out_of_memory(error):
                    raise
                failure = error.with_traceback(None)  # the traceback would keep tensors
            if not self._need_less():
                raise failure

    def poll(self) -> None:
        """Follow the batch size that the supervisor asks for, and advance its form."""
        updater, counters = self._updater, self._ctx.counters
        size = min(int(self._ctx.control.supervisor["batch_size"]), self._max_batch_size)
        before = updater.batch_size  # `_advance` may change it to verify another size
        form = self._advance(size)
        if form is Form.COMPILING and before <= self._max_batch_size:
            running = self._forms.get(before, Form.COMPILING)
            if running is not Form.COMPILING:  # it stays until the new size is ready
                size, form = before, running
        updater.batch_size = counters["batch_size"] = size
        counters["compiled"] = REPORTED[form]
        started = [job for jobs in self._compilations.values() for job in jobs]
        counters["compiling"] = sum(job.is_compiling for job in started)

    def close(self) -> None:
        """End compilations, and work on another device."""
        for compilations in self._compilations.values():
            for compilation in compilations:
                compilation.close()
        self._updater.close()

    @property
    def _max_batch_size(self) -> int:
        """The largest batch that may fit into memory: half of what did not."""
        too_large = [size for size, form in self._forms.items() if form is Form.OUT_OF_MEMORY]
        return max(min(too_large) // 2, MIN_BATCH_SIZE) if too_large else UNLIMITED

    def _await_fused(self) -> None:
        """On a GPU plain updates would need half a second themselves before the first one runs."""
        deadline = time.monotonic() + FUSING_LIMIT_S
        while self._replay.device.type == "cuda" and time.monotonic() < deadline:
            self.poll()
            if self._forms[self._updater.batch_size] is not Form.COMPILING:
                return
            time.sleep(0.002)

    def _advance(self, size: int) -> Form:
        """Advance the form of a batch size as far as possible."""
        form = self._forms.get(size)
        if form is None:
            form = Form.COMPILING if self._compile else Form.PLAIN
        if form in (Form.COMPILING, Form.FUSED):
            form = self._look(size, form)
        self._forms[size] = form
        return form

    def _look(self, size: int, form: Form) -> Form:
        """The form after what the compilations of this size have finished."""
        compilations = self._compilations_for(size)
        ready = [result for job in compilations if (result := job.poll()) is not None]
        if len(ready) < len(compilations) or not compilations:
            return form
        made, wanted = self._judge(size, ready), self._keys(size)
        if [compilation.key for compilation in compilations] == wanted:
            self._compilations[size] = []
            # If it was refused, the fused form stays.
            return made if form is Form.COMPILING or made is Form.COMPILED else form
        wait_s = max(0.0, self._compile_from_s - time.monotonic())
        self._compilations[size] = self._started(wanted, wait_s)
        return Form.FUSED if made is Form.COMPILED else form

    def _judge(self, size: int, results: list[CompiledUpdate | Refusal]) -> Form:
        """Verify the compiled parts and install those that are right."""
        self._updater.batch_size = size
        self._updater.pause()
        form = Form.COMPILED
        for part, result in zip(self._updater.parts, results, strict=True):
            refusal = result if isinstance(result, Refusal) else self._install(part, result)
            if refusal is not None:
                print(refusal.detail)
                no_compiler = refusal.reason is RefusalReason.NO_CPP_COMPILER
                form = Form.NO_COMPILER if no_compiler else Form.REFUSED
        return form

    def _install(self, part: Updater, compiled: CompiledUpdate) -> Refusal | None:
        """Use a compiled part from now on, unless it gives other numbers than the plain one."""
        found = verify(compiled, part)
        if found.mismatch is not None:
            detail = f"the compiled update differs from the plain one: {found.mismatch}"
            return Refusal(RefusalReason.MISMATCH, detail)
        size = compiled.key.batch_size
        part.install_compiled(size, compiled.step)
        for follower in part.followers:
            follower.plain.metric_names = part.plain.metric_names
            follower.install_compiled(size, load_step(compiled.path, follower.device))
        verified = "were verified before" if found.from_record else "are verified"
        self._ctx.note(f"compiled updates of batch {size} are loaded and {verified}")
        return None

    def _begin(self, size: int) -> None:
        """Start to load the compiled form of a batch size, or to make the fused one."""
        if not all(map(loads_instantly, self._paths(size))):
            # Prepare the plain form first: that is slow beside a thread that loads.
            with _memory_shortage_allowed():
                self._updater.prepare()
        self._compilations_for(size)

    def _keys(self, size: int, fused: bool = False) -> list[CompileKey]:
        placement = self._replay.placement
        return compile_keys(self._ctx.config, self._ctx.spec, size, placement, fused)

    def _paths(self, size: int) -> list[Path]:
        """The files of the fastest form, if there are any."""
        try:
            return [path for key in self._keys(size) if (path := key.path()).exists()]
        except OSError:  # no folder for a cache
            return []

    def _compilations_for(self, size: int) -> list[Compilation]:
        if size not in self._compilations:
            keys = self._keys(size)
            cached = len(self._paths(size)) == len(keys)
            self._compilations[size] = self._started(keys if cached else self._keys(size, True))
        return self._compilations[size]

    def _started(self, keys: list[CompileKey], wait_s: float = 0.0) -> list[Compilation]:
        log = self._ctx.run.log("compiler")
        return [Compilation(key, log, wait_s) for key in keys]

    def _need_less(self) -> bool:
        """Move the replay to the host, or else halve the batches; False if neither is left to do."""
        replay, updater, counters = self._replay, self._updater, self._ctx.counters
        updater.release()
        free_memory(replay.device)
        if replay.placement == "gpu" and _moved_to_host(replay):
            counters["replay_placement"] = PLACEMENTS.index(replay.placement)
            print("out of GPU memory: from now on the replay is in page-locked host memory")
        elif updater.batch_size > MIN_BATCH_SIZE:
            self._forms[updater.batch_size] = Form.OUT_OF_MEMORY
            print(f"out of GPU memory: from now on a batch has {self._max_batch_size} transitions")
        else:
            return False
        counters["out_of_memory"] += 1
        free_memory(replay.device)
        return True


def _moved_to_host(replay: AnyReplay) -> bool:
    """Move the rows to host memory, if they fit there."""
    with _memory_shortage_allowed():
        replay.move_to_host()
    return replay.placement != "gpu"


@contextmanager
def _memory_shortage_allowed() -> Iterator[None]:
    """Ignore an out-of-memory error: whatever still needs the memory raises it again."""
    try:
        yield
    except RuntimeError as error:
        if not out_of_memory(error):
            raise


def free_memory(device: torch.device) -> None:
    """Give back memory that is no longer used."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
