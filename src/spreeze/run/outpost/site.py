"""What an outpost owns: shared memory, a fork server, samplers, a folder for their logs."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from spreeze.envs.inspect import difference, inspect_env
from spreeze.envs.targets import absolute_target
from spreeze.errors import UsageError
from spreeze.faults import Fault
from spreeze.machine.scratch import Scratch
from spreeze.roles.context import Job
from spreeze.roles.relay.messages import MIRRORED, Invitation, Orders, Report
from spreeze.rows import Rows, row_layout
from spreeze.run.controller import SAMPLERS, Controller
from spreeze.run.crew import Crew
from spreeze.run.plan import shared_blocks
from spreeze.run.processes.call import call
from spreeze.run.processes.pool import Processes
from spreeze.run.watchdog import Watchdog
from spreeze.settings.auto.processes import choose_for_node
from spreeze.settings.config import Config, resolved
from spreeze.spec import EnvSpec, Floats
from spreeze.wires.arena import Arena
from spreeze.wires.blocks import USUAL_BYTES, pack, rows_per_block
from spreeze.wires.control import Control
from spreeze.wires.documents import ENV_CALLS, EPISODES_PLAYED, Document
from spreeze.wires.experience import Experience, Lanes
from spreeze.wires.weights import ASKED, Weights

FLUSH_S = 0.2
"""A block that is smaller than usual is sent after this long."""
WATCH_S, TUNE_S = 0.005, 1.0
INSPECT_S = 300.0
"""How long the environment may take to be tried out."""
VERSIONS_KEPT = 1 << 16


@dataclass
class Journal:
    """What happens to the processes of an outpost; the notes go to the learner's machine."""

    pids: dict[str, int] = field(default_factory=dict)
    faults: Counter[Fault] = field(default_factory=Counter)
    standing: dict[str, list[str]] = field(default_factory=dict)
    restarts: int = 0
    stop_reason: str | None = None
    notes: list[str] = field(default_factory=list)

    def note(self, text: str) -> None:
        """Keep it for the next report."""
        self.notes = [*self.notes, text[:1000]][-20:]


class Site:
    """The samplers of one machine."""

    def __init__(self, invitation: Invitation) -> None:
        """Check that rows and policies mean the same here, and start the samplers; UsageError if not."""
        self._processes = Processes()
        self._scratch: Scratch | None = None
        self._crew: Crew | None = None
        try:
            self._start(invitation)
        except BaseException:
            self.close()
            raise

    def _start(self, invitation: Invitation) -> None:
        spec = self._inspect(invitation)
        config = choose_for_node(invitation.config, spec, invitation.cpus)
        config = dataclasses.replace(config, trace=None, callback=(), resume=None)
        left = max(config.sampler.random_steps - invitation.env_steps, 0)
        sampler = dataclasses.replace(config.sampler, random_steps=left)
        config = dataclasses.replace(config, sampler=sampler)
        blocks = shared_blocks(config, spec, invitation.form)
        self._arena = Arena.create(blocks)
        self._control, self._weights = Control(self._arena), Weights(self._arena)
        self._env_calls = Document(self._arena, ENV_CALLS)
        self._check_layout(invitation, config, spec)
        self._scratch = Scratch("spreeze-outpost-", invitation.scratch)
        folder = self._scratch.path
        for name in ("metrics", "logs"):
            (folder / name).mkdir()
        control = self._control.supervisor
        control["active_samplers"] = config.sampler.processes
        control["resumed_steps"] = invitation.resumed_steps
        self._lanes = Lanes(
            Experience(self._arena, resolved(config.sampler.envs_per_process)).readers(
                as_words=True
            )
        )
        layout = row_layout(spec, config.hyper.row_format())
        self._buffer: Rows = np.empty(rows_per_block(layout.row_bytes), layout.dtype)
        self._usual_rows = max(USUAL_BYTES // layout.row_bytes, 1)
        self._versions = np.zeros(VERSIONS_KEPT, np.uint32)
        self._version = 0
        self._journal = Journal()
        chosen = [] if invitation.config.ray.samplers else [SAMPLERS]
        self._controller = Controller(config, chosen, {}, self._control, self._own_steps)
        self._next_tune_s = 0.0
        started_s = time.monotonic() - invitation.elapsed_s

        evaluates = config.ray.evaluate == "nodes"
        self._asked = Weights(self._arena, ASKED) if evaluates else None
        self._answer = Document(self._arena, EPISODES_PLAYED) if evaluates else None
        self._number = 0

        def job(role: str, index: int) -> Job:
            return Job(
                role,
                index,
                config,
                spec,
                invitation.env,
                folder,
                started_s,
                invitation.evaluation,
                invitation.machine,
                invitation.form,
            )

        jobs = [job("sampler", i) for i in range(resolved(config.sampler.processes))]
        jobs += [job("evaluator", 0)] if evaluates else []
        watchdog = Watchdog(config.limits, lambda _: True)
        self._crew = Crew(self._processes, jobs, [], self._arena, self._journal, watchdog)
        if (failure := self._crew.start_all()) is not None:
            raise UsageError([failure])

    def _inspect(self, invitation: Invitation) -> EnvSpec:
        """What the environment is like on this machine; UsageError if policies would not fit."""
        expected, env = invitation.spec, invitation.env
        target = absolute_target(env) if isinstance(env, str) else env
        spec: EnvSpec = call(
            self._processes, inspect_env, target, expected.id, True, limit_s=INSPECT_S
        )
        if (differing := difference(spec, expected)) is not None:
            raise UsageError([f"the environment is another one there: {differing}"])
        # What was measured there counts for the settings; the rest as on the learner's machine.
        return dataclasses.replace(expected, step_us=spec.step_us)

    def _check_layout(self, invitation: Invitation, config: Config, spec: EnvSpec) -> None:
        layout = row_layout(spec, config.hyper.row_format())
        if layout.fields != invitation.fields:
            ours = ", ".join(f"{f.name} {f.size}" for f in layout.fields)
            theirs = ", ".join(f"{f.name} {f.size}" for f in invitation.fields)
            raise UsageError([f"rows have another layout there: {ours}, not {theirs}"])
        if self._weights.size != invitation.policy_size:
            raise UsageError(
                [
                    f"a policy has {self._weights.size:,} numbers there, not {invitation.policy_size:,}"
                ]
            )

    def take(self, orders: Orders, policy: Floats | None, to_play: Floats | None) -> Report:
        """Follow the orders; return when there is a block, or after `FLUSH_S`."""
        assert self._crew is not None
        self._follow(orders, policy)
        if self._asked is not None and orders.asked is not None and to_play is not None:
            self._number = orders.asked.number
            self._asked.publish(to_play, orders.asked.seed, 0)
        began_s, failure = time.monotonic(), None
        while failure is None:
            failure = self._crew.watch(WATCH_S)
            self._tune()
            late = time.monotonic() - began_s > FLUSH_S
            if late or self._lanes.num_waiting >= self._usual_rows:
                break
        rows = self._lanes.drain(self._buffer)
        rows["version"] = self._versions[rows["version"] % VERSIONS_KEPT]
        return self._report(rows, failure)

    def _follow(self, orders: Orders, policy: Floats | None) -> None:
        control = self._control
        for (table, word), value in zip(MIRRORED, orders.words, strict=True):
            getattr(control, table)[word] = value
        control.relay["env_steps"] = orders.steps_elsewhere
        if orders.env_calls is not None:
            self._env_calls.write(orders.env_calls)
        if policy is not None:
            # The wire here counts its own versions; rows are sent with the learner's.
            own = self._weights.version + 1
            self._versions[own % VERSIONS_KEPT] = self._version = orders.version
            self._weights.publish(policy, int(control.learner["updates"]), control.env_steps)

    def _report(self, rows: Rows, failure: str | None) -> Report:
        samplers, notes = self._control.samplers, tuple(self._journal.notes)
        self._journal.notes = []
        lost = self._crew.lost_samplers if self._crew else {}
        active = min(int(self._control.supervisor["active_samplers"]), len(samplers))
        return Report(
            block=pack(rows) if len(rows) else None,
            env_steps=self._own_steps(),
            episodes=int(samplers["episodes"].sum()),
            rows_lost=self._lanes.num_lost,
            samplers=active - len(lost),
            version=self._version,
            played=self._played(),
            notes=notes,
            failure=failure,
        )

    def _played(self) -> tuple[int, Any] | None:
        """The episodes of an evaluation, once they have been played."""
        if self._answer is None or not self._answer.refresh():
            return None
        return self._number, self._answer.value["episodes"]

    def _own_steps(self) -> int:
        return int(self._control.samplers["env_steps"].sum())

    def _tune(self) -> None:
        if (now := time.monotonic()) >= self._next_tune_s:
            self._next_tune_s = now + TUNE_S
            self._controller.tick(now)

    def close(self) -> None:
        """End all processes, free the memory, remove the folder."""
        self._processes.close()
        if self._crew is not None:
            self._crew.close()
        with contextlib.suppress(AttributeError, OSError):
            self._arena.close()
        if self._scratch is not None:
            self._scratch.remove()
