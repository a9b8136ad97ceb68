"""What every role gets to work with, and the loop that runs it.

A role is a generator: the code before its first `yield` is set-up, each `yield` ends one unit of
work, and `finally` is teardown. So stopping, heartbeat and crash reports are written once, here, and
serial mode is a loop over the same generators (`run.processes.serial`).
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from threading import Lock

import numpy as np

from spreeze.envs.episodes import MAX_NAMES, InfoNames
from spreeze.envs.guard import EnvGuard
from spreeze.envs.targets import EnvTarget, NamedEnv
from spreeze.faults import Doing
from spreeze.policy import Policy, PolicyForm, make_policy
from spreeze.rows import Layout, row_layout
from spreeze.settings.config import Config, resolved
from spreeze.spec import EnvSpec
from spreeze.store.metrics import Recorder
from spreeze.store.rundir import RunDir
from spreeze.store.trace import Activity, Mark, Tracer, no_mark
from spreeze.store.write_thread import WriteThread
from spreeze.wires.arena import Arena
from spreeze.wires.blocks import open_arrivals
from spreeze.wires.control import Control, Table
from spreeze.wires.documents import Document, EpisodeReports
from spreeze.wires.experience import Experience, LaneReader
from spreeze.wires.weights import Weights

ROLES = ("sampler", "learner", "evaluator", "visualizer", "relay", "inference")
WITH_WRITE_THREAD = ("sampler", "learner")
"""Roles that do not wait for a disk that hangs."""
CLOSE_S = 2.0
"""How long such a role waits for the disk at its end."""
TRACE_DELAY_S = 2.0
"""A trace begins this long after the first updates, when the processes have found their rhythm."""


@dataclass(frozen=True)
class Job:
    """The description of one role process: plain data, so that it can be pickled and sent to it."""

    role: str
    index: int
    config: Config
    spec: EnvSpec
    env: EnvTarget
    run_path: Path
    started_s: float
    """When the command started, on the monotonic clock; all processes count their times from there."""
    evaluation: tuple[NamedEnv, ...] = ()
    """The environments of evaluations; empty: `env`."""
    machine: int = 0
    """Which machine of a cluster it runs on, for its seed; 0: the learner's."""
    form: PolicyForm | None = None
    """The policy that acts; None: as the config says."""
    scratch: Path | None = None
    """For the relay: where a Ray that it starts keeps its files. The folder goes with the supervisor."""
    shared_gpu: Path | None = None
    """Where CUDA finds the service by which processes share a GPU (`machine.shared_gpu`), if the run has one."""

    @property
    def acts_through_torch(self) -> bool:
        """Whether the process acts by a torch module, or infers for those that do not."""
        return self.role == "inference" or (self.form is not None and bool(self.form.module))

    @property
    def name(self) -> str:
        """The name in file names and process titles: `sampler-3`."""
        return f"{self.role}-{self.index}"


@dataclass
class Context:
    """Everything a running role uses: its job, the wires, a clock, its metrics file."""

    job: Job
    experience: Experience
    arrivals: Experience | None
    """The lane of rows from other machines, if there are any."""
    weights: Weights
    control: Control
    now: Callable[[], float]
    """Seconds since the command started. In serial mode env steps stand for time, so that a seed reproduces."""
    idle: Callable[[float], None]
    """Sleep for this many seconds; does nothing in serial mode."""
    arena: Arena
    threads: bool = False
    """Whether roles that must not wait for a disk have a thread that writes for them."""
    at_boundary: bool = False
    """Serial mode: whether the role ends only to start again from the checkpoint that is written now."""
    mark: Mark = no_mark
    """Say what the role does from now on; recorded while there is a trace."""
    tracer: Tracer | None = None
    thread: WriteThread | None = field(init=False, default=None)
    recorder: Recorder = field(init=False)
    _counting: Lock = field(default_factory=Lock)

    def __post_init__(self) -> None:
        if self.threads and self.job.role in WITH_WRITE_THREAD:
            self.thread = WriteThread("writes", self.count_loss)
            self.thread.start()
        file = self.run.metrics / f"{self.job.name}.jsonl"
        self.recorder = Recorder(file, self.count_loss, self.thread)

    @property
    def config(self) -> Config:
        """The resolved config of the run."""
        return self.job.config

    @property
    def spec(self) -> EnvSpec:
        """The environment's description."""
        return self.job.spec

    @property
    def form(self) -> PolicyForm:
        """How the policy acts."""
        return self.job.form or self.config.hyper.policy_form(self.spec)

    def make_policy(self) -> Policy:
        """The policy that acts, with parameters 0."""
        return make_policy(self.spec, self.form, self.config.hyper.policy_module)

    @property
    def layout(self) -> Layout:
        """The format of a row."""
        return row_layout(self.job.spec, self.config.hyper.row_format())

    @property
    def run(self) -> RunDir:
        """The run directory."""
        return RunDir(self.job.run_path)

    @property
    def counters(self) -> Table:
        """The record on the control wire that only this role writes."""
        table = {"sampler": "samplers"}.get(self.job.role, self.job.role)
        record: Table = getattr(self.control, table)
        return record[self.job.index : self.job.index + 1].reshape(()) if record.ndim else record

    def lane_readers(self, positions: Sequence[int] | None) -> list[LaneReader]:
        """The reading ends of all lanes, the one from other machines last; see `Experience.readers`."""
        lanes = self.experience.readers(as_words=True, positions=positions)
        if self.arrivals is not None:
            arrived = None if positions is None else positions[len(lanes) :]
            lanes += self.arrivals.readers(as_words=True, positions=arrived)
        return lanes

    def document(self, name: str) -> Document:
        """One of the run's small documents; `wires.documents` lists them."""
        return Document(self.arena, name)

    def episode_reports(self) -> EpisodeReports:
        """What the environments of all samplers said at the ends of their recent episodes."""
        return EpisodeReports(self.arena, len(self.control.samplers))

    def seed(self, num: int = 1) -> list[int]:
        """Seeds for this role: independent of those of every other role and index."""
        key = [ROLES.index(self.job.role), self.job.index]
        key += [self.job.machine] if self.job.machine else []
        # A resumed run must not play the same episodes again.
        steps = int(self.control.supervisor["resumed_steps"])
        seed = [self.config.seed, steps] if steps else self.config.seed
        sequence = np.random.SeedSequence(seed, spawn_key=tuple(key))
        return [int(word) for word in sequence.generate_state(num)]

    @property
    def share_done(self) -> float:
        """How much of the run's steps or time is over, 0 to 1, in thousandths: what schedules follow."""
        config, shares = self.config, [0.0]
        if config.max_steps is not None:
            shares.append(self.control.env_steps / config.max_steps)
        if config.time_s is not None and not config.serial:  # where steps stand for time
            began_s = float(self.control.supervisor["training_began_s"])
            shares.append((self.now() - began_s) / config.time_s if began_s else 0.0)
        return max(0, min(int(1000 * max(shares)), 1000)) / 1000

    def env_guard(self) -> EnvGuard:
        """Counts what the environments of this role do wrong; the newest traceback is kept beside its log."""
        limits = self.config.limits
        return EnvGuard(
            self.counters, limits.env_errors, limits.largest_number, self._keep_env_error
        )

    def _keep_env_error(self, text: str) -> None:
        self.note(f"an environment failed and goes on:\n{text.rstrip()}")
        self.write(lambda: self.run.keep_error(self.job.name, text))

    def write(self, make: Callable[[], None]) -> None:
        """Write something to disk, now or by the thread. On a full disk it is dropped and counted."""
        if self.thread is not None:
            self.thread.hand_over(make)
            return
        try:
            make()
        except OSError:
            self.count_loss()

    def note(self, what: str) -> None:
        """Write a line with the time to this role's log."""
        with suppress(OSError, ValueError):  # an environment may have closed standard output
            print(f"{self.now():8.2f} s  {what}", flush=True)

    def count_names(self, names: InfoNames) -> None:
        """Count the names in `info` that are not recorded, and name some in the log when the first one comes."""
        if names.left_out and not self.counters["names_left_out"]:
            some = ", ".join(sorted(names.left_out)[:5])
            self.note(f"of the numbers in info, {MAX_NAMES} are recorded; left out: {some} ...")
        self.counters["names_left_out"] = len(names.left_out)

    def count_loss(self) -> None:
        """Count a line or a picture that could not be written."""
        with self._counting:
            self.counters["lines_lost"] += 1

    def wait(self, seconds: float) -> None:
        """Sleep because there is nothing to do, and count the time in `waited_s`."""
        before = self.now()
        self.mark(Activity.WAIT)
        self.idle(seconds)
        self.counters["waited_s"] += self.now() - before

    def start_trace(self, seconds: float) -> None:
        """Record what the role does, from a while after the first updates."""

        def is_due() -> bool:
            began_s = float(self.control.learner["first_updated_s"]) + TRACE_DELAY_S
            return began_s > TRACE_DELAY_S and 0 <= self.now() - began_s < seconds

        part = self.run.trace_parts / f"{self.job.name}.npy"
        self.tracer = Tracer(part, seconds, is_due, self.write)
        self.mark = self.tracer.mark

    def close(self) -> None:
        """Close the files."""
        if self.tracer is not None:
            self.tracer.close()
        self.recorder.close()
        if self.thread is not None:
            self.thread.close(CLOSE_S)


def join(
    job: Job,
    arena: Arena,
    now: Callable[[], float],
    idle: Callable[[float], None],
    threads: bool = False,
) -> Context:
    """Attach a job to the run's shared memory; returns its context. With `threads`, some roles write by a thread."""
    block = resolved(job.config.sampler.envs_per_process)
    context = Context(
        job=job,
        experience=Experience(arena, block),
        arrivals=open_arrivals(arena) if job.config.backend == "ray" else None,
        weights=Weights(arena),
        control=Control(arena),
        now=now,
        idle=idle,
        arena=arena,
        threads=threads,
    )
    if job.config.trace_s is not None:
        context.start_trace(job.config.trace_s)
    return context


def start(context: Context) -> Generator[None, None, None]:
    """Create the role's generator. Its module is imported here: only the learner's imports torch."""
    module = import_module(f"spreeze.roles.{context.job.role}")
    generator: Generator[None, None, None] = module.run(context)
    return generator


def drive(context: Context) -> None:
    """Run a role until the supervisor sets the stop flag; each unit of work is one heartbeat."""
    counters, control = context.counters, context.control
    if "doing" in (counters.dtype.names or ()):
        counters["doing"] = Doing.OTHER  # a process before this one may have been killed in a step
    role = start(context)
    try:
        for _ in role:
            counters["beats"] += 1
            if control.stopping:
                break
    finally:
        role.close()
        context.close()
