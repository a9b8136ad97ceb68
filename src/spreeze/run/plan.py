"""The plan: everything about a run, decided and checked before the run exists."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import cast

from spreeze.envs.inspect import inspect_env
from spreeze.envs.targets import EnvTarget, NamedEnv, check_sendable, picklable_target
from spreeze.errors import RunFailed, UsageError
from spreeze.machine.facts import Machine
from spreeze.machine.limits import limit_problems
from spreeze.policy import PolicyForm
from spreeze.rows import row_layout
from spreeze.run.new_folder import claim_folder
from spreeze.run.processes.call import CallFailed, CallKilled, CallTooLate, call
from spreeze.run.processes.pool import Processes, StartFailed
from spreeze.settings.auto import Probe, no_probe, resolve
from spreeze.settings.auto.images import with_stack
from spreeze.settings.auto.limits import CONSTRUCT_S, RESET_S, STEP_S
from spreeze.settings.auto.memory import learner_space, memory_needs
from spreeze.settings.auto.rates import rules_suffice
from spreeze.settings.auto.reason import Reason
from spreeze.settings.checks import check_config
from spreeze.settings.config import Config, resolved
from spreeze.settings.probe import (
    ProbeRequest,
    ProbeResult,
    load_cached,
    measure,
    probe_allowed,
    save_cached,
)
from spreeze.settings.resume import Resumption, check_own_networks, compare_with_resumed
from spreeze.settings.start_from import Fit, find_source, fit_networks
from spreeze.settings.trial import Tried, try_algorithm
from spreeze.spec import EnvSpec
from spreeze.wires.acting import GROUPS, acting_blocks
from spreeze.wires.arena import Block, arena_bytes
from spreeze.wires.blocks import arrivals_blocks
from spreeze.wires.control import control_blocks
from spreeze.wires.documents import document_blocks
from spreeze.wires.experience import experience_blocks
from spreeze.wires.weights import ASKED, weights_blocks

LANE_ROWS, LANE_BYTES = 65_536, 256 << 20
"""The most rows in one sampler's lane, and the most bytes in all lanes."""
FEWEST_BLOCKS, FEWEST_FILMS = 8, 2
"""The fewest rows in a lane, for each of its environments. A film is a megabyte, and arrives once in 128 steps."""
OTHER_PROCESSES = 7
"""Two fork servers, learner, visualizer, page, tracker, compiler."""


@dataclass(frozen=True)
class Plan:
    """A run before it starts: no knob is "auto" any more, and it fits in memory."""

    config: Config
    reasons: dict[str, Reason]
    spec: EnvSpec
    blocks: list[Block]
    machine: Machine
    measured: ProbeResult | None = None
    """What the probe measured, if there was one."""
    resumed: Resumption | None = None
    """What it continues from."""
    listed: bool = True
    """Whether the screen lists every setting that was chosen, or says the main ones in one line."""
    started_from: Fit | None = None
    """The networks that it starts with."""
    evaluation: tuple[NamedEnv, ...] = ()
    """The environments of evaluations; empty: the one that is trained on."""
    callbacks: tuple[str, ...] = ()
    """The names of the user's own code in the run."""
    form: PolicyForm | None = None
    """The policy that acts, of a user's own algorithm; None: as the config says."""


def describe_env(
    env: EnvTarget, config: Config, processes: Processes | None, problems: list[str]
) -> EnvSpec:
    """Try the environment out in a throw-away process, where its prints and crashes stay.

    `problems` are those found so far, so that the user sees all of them at once.
    """
    name, hurry = config.env, not config.reproducible
    try:
        if processes is None:
            spec = inspect_env(env, name, hurry)
        else:
            target, limit_s = picklable_target(env), _inspection_limit_s(config)
            check_sendable(target, name)
            spec = call(processes, inspect_env, target, name, hurry, limit_s=limit_s)
    except UsageError as error:
        raise UsageError([*problems, *error.problems]) from None
    except StartFailed as error:
        raise RunFailed(str(error)) from None
    except CallFailed as error:
        if problems:  # wrong knobs may be the cause
            raise UsageError(problems) from None
        what = f"{name} failed when it was tried out, before the run."
        if isinstance(error, CallTooLate):
            what = f"{name} was not ready in time. If it needs longer, raise --limits.construct-s."
        if isinstance(error, CallKilled):
            what = f"{name} could not be tried out. That may not be its own fault."
        log = claim_folder(config) / "logs" / "probe.log"
        with contextlib.suppress(OSError):  # on a full disk the terminal still shows it
            log.parent.mkdir()
            log.write_text(f"{error}\n")
        raise RunFailed(f"{error}\n{what} This output is kept in {log}") from None
    if problems:
        raise UsageError(problems)
    return with_stack(spec, config.simulation.stack)


def _inspection_limit_s(config: Config) -> float:
    """How long it may take to make the environment, reset it and step it."""
    limits = config.limits
    return sum(
        usual_s if given == "auto" else given
        for given, usual_s in (
            (limits.construct_s, CONSTRUCT_S),
            (limits.reset_s, RESET_S),
            (limits.step_s, STEP_S),
        )
    )


def make_plan(
    config: Config,
    spec: EnvSpec,
    machine: Machine,
    processes: Processes | None = None,
    say: Callable[[str], None] = lambda _: None,
    measure: bool = False,
) -> Plan:
    """Replace every "auto" and lay out the shared memory; UsageError if the run does not fit.

    With `processes` the machine is measured first, unless a cached result is there or rules of thumb
    choose as well; with `measure` in that case, too.
    """
    probe: Probe = no_probe
    if processes is not None and probe_allowed():
        probe = partial(_probe_machine, config.retune, measure or config.retune, processes, say)
    chosen = resolve(config, spec, machine, probe)
    if problems := check_config(chosen.config):
        raise UsageError(problems)
    resumed = compare_with_resumed(chosen.config, spec)
    for line in resumed.lines() if resumed else ():
        say(line)
    tried = _try_own_algorithm(chosen.config, spec, processes)
    if tried and tried.said:
        say(tried.said)
    if tried and resumed:
        check_own_networks(resumed, chosen.config.algo, tried, spec)
    form = tried.form if tried else None
    started = _fit_source(chosen.config, spec, processes)
    for line in started.lines() if started else ():
        say(line)
    blocks = shared_blocks(chosen.config, spec, form)
    needs = memory_needs(chosen.config, spec, arena_bytes(blocks))
    problems = [problem for need in needs if (problem := need.problem(machine))]
    problems += limit_problems(*_process_needs(chosen.config, spec, blocks))
    if problems:
        raise UsageError(problems)
    plan = Plan(chosen.config, chosen.reasons, spec, blocks, machine, chosen.probe, resumed)
    return dataclasses.replace(plan, started_from=started, form=form)


def _try_own_algorithm(config: Config, spec: EnvSpec, processes: Processes | None) -> Tried | None:
    """Try the user's own algorithm out in a throw-away process, as its environment was."""
    if ":" not in config.algo:
        return None
    facts = (config.algo, dataclasses.asdict(config.hyper), spec.to_json())
    if processes is None:
        return try_algorithm(*facts)
    try:
        return cast(Tried, call(processes, try_algorithm, *facts, with_torch=True))
    except CallFailed as error:
        raise RunFailed(
            f"{error}\n--algo {config.algo} failed when it was tried out, before the run."
        ) from None


def _fit_source(config: Config, spec: EnvSpec, processes: Processes | None) -> Fit | None:
    """Which networks of the run to start from fit this one; UsageError if none does."""
    if config.start_from is None or config.resume is not None:
        return None
    source = find_source(config.start_from, Path(config.runs))
    facts = (source, config.algo, dataclasses.asdict(config.hyper), spec.to_json())
    if processes is None:
        return fit_networks(*facts)
    try:
        return cast(Fit, call(processes, fit_networks, *facts, with_torch=True))
    except CallFailed as error:
        raise RunFailed(f"{error}\nthe networks could not be compared.") from None


def _process_needs(config: Config, spec: EnvSpec, blocks: list[Block]) -> tuple[int, int]:
    """How many processes a run has, and the address space of the largest one."""
    others = 0 if config.serial else OTHER_PROCESSES + resolved(config.evaluator.processes)
    samplers = 0 if config.serial else resolved(config.sampler.processes)
    return others + samplers, learner_space(config, spec, arena_bytes(blocks))


def shared_blocks(config: Config, spec: EnvSpec, form: PolicyForm | None = None) -> list[Block]:
    """The shared memory of a run: control words, weights, and a lane of experience per sampler."""
    layout = row_layout(spec, config.hyper.row_format())
    lanes, envs = resolved(config.sampler.processes), resolved(config.sampler.envs_per_process)
    size = (form or config.hyper.policy_form(spec)).size(spec)
    lane_rows = min(LANE_BYTES // layout.row_bytes // lanes, LANE_ROWS)
    blocks = FEWEST_BLOCKS if layout.film is None else FEWEST_FILMS
    return [
        *control_blocks(lanes),
        *document_blocks(lanes, config.ray.evaluate == "nodes"),
        *weights_blocks(size),
        *(weights_blocks(size, ASKED) if config.ray.evaluate == "nodes" else ()),
        *experience_blocks(layout, lanes, max(lane_rows, blocks * envs), envs),
        *(_acting_blocks(config, spec, form) if config.sampler.acting == "inference" else ()),
        *(arrivals_blocks(layout) if config.backend == "ray" else ()),
    ]


def _acting_blocks(config: Config, spec: EnvSpec, form: PolicyForm | None) -> list[Block]:
    """Memory for the questions of samplers that do not run the policy themselves."""
    form = form or config.hyper.policy_form(spec)
    obs_bytes = 4 * (spec.frames.stack_words if spec.images else spec.obs_size)
    outputs = form.outputs(spec) + (spec.action_size if form.head == "gaussian" else 0)
    samplers, envs = resolved(config.sampler.processes), resolved(config.sampler.envs_per_process)
    return acting_blocks(samplers, envs // GROUPS, obs_bytes, outputs)


def _probe_machine(
    retune: bool,
    always: bool,
    processes: Processes,
    say: Callable[[str], None],
    request: ProbeRequest,
) -> ProbeResult | None:
    """What this machine can do, from the cache or measured in a throw-away process; None: not worth it."""
    known = None if retune else load_cached(request)
    if known is not None:
        return known
    if rules_suffice(request) and not always:
        return None
    say("measuring what this machine can do: a few seconds, only once ...")
    try:
        measured = call(processes, measure, request, with_torch=True)
    except CallFailed as error:
        say(f"the measurement failed ({error.cause}); rules of thumb decide instead")
        return None
    return save_cached(request, cast(ProbeResult, measured))
