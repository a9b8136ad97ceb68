"""The plan: every "auto" replaced with a reason; runs that do not fit are refused."""

from __future__ import annotations

import dataclasses
import io
import os
import resource
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

import fakes
from spreeze.cli.drawing import print_choices
from spreeze.cli.screen import Screen
from spreeze.errors import RunFailed, UsageError
from spreeze.machine import affinity as affinity_module
from spreeze.machine.facts import Gpu, Machine
from spreeze.run.new_folder import create_run
from spreeze.run.plan import Plan, describe_env, make_plan
from spreeze.run.processes.pool import Processes
from spreeze.run.processes.servers import ForkServers, Server
from spreeze.settings.auto.reason import Source
from spreeze.settings.config import get_knob, knob_names
from spreeze.settings.defaults import config_with, default_config
from spreeze.settings.presets import PRESETS
from spreeze.spec import EnvSpec

GIB = 2**30
SPEC = EnvSpec(
    id="HalfCheetah-v5",
    obs_shape=(17,),
    action_shape=(6,),
    action_low=(-1.0,) * 6,
    action_high=(1.0,) * 6,
)
LAPTOP = Machine(cores=2, memory_bytes=8 * GIB, gpus=())
DESKTOP = Machine(cores=16, memory_bytes=64 * GIB, gpus=(Gpu("RTX", 20 * GIB),))


@pytest.mark.parametrize(
    ("affinity", "allowed", "left"), [(15, 10**9, 15), (63, 16, 15), (3, 1, 1)]
)
def test_the_learners_cores_are_not_counted_twice(
    monkeypatch: pytest.MonkeyPatch, affinity: int, allowed: int, left: int
) -> None:
    """This process already keeps off them; a container's CPU limit counts all cores."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(affinity)))
    monkeypatch.setattr(affinity_module, "allowed_cores", lambda: allowed)
    assert affinity_module.cores_beside(1) == left


def plan(machine: Machine, **knobs: Any) -> Plan:
    config = default_config(env=SPEC.id)
    return make_plan(config_with(config, knobs), SPEC, machine)


@pytest.mark.parametrize("machine", [LAPTOP, DESKTOP, dataclasses.replace(LAPTOP, cores=1)])
@pytest.mark.parametrize("serial", [True, False])
def test_no_auto_is_left_and_every_choice_has_a_reason(machine: Machine, serial: bool) -> None:
    config = default_config(env="Swimmer-v5")
    config = config_with(config, {"serial": serial})
    made = make_plan(config, SPEC, machine)
    automatic = [name for name in knob_names(config) if get_knob(config, name) == "auto"]
    left = [name for name in automatic if get_knob(made.config, name) == "auto"]
    assert left in ([], ["learner.updates_per_step"]), "a free ratio stays free"
    preset = {name for name, why in made.reasons.items() if why.text == "preset swimmer"}
    assert preset == {"algo", *PRESETS["swimmer"].algos[config.algo]}
    assert set(made.reasons) == {"preset"} | preset | (set(automatic) - set(left))
    assert all(reason.text for reason in made.reasons.values())
    assert all(made.reasons[name].source is Source.PRESET for name in preset)


def test_fast_environments_share_a_process_but_a_serial_run_ignores_timings() -> None:
    def envs(step_us: float, **knobs: Any) -> Any:
        spec = dataclasses.replace(SPEC, step_us=step_us)
        config = config_with(default_config(env=SPEC.id), knobs)
        return make_plan(config, spec, LAPTOP).config.sampler.envs_per_process

    assert envs(10.0) > envs(400.0) > envs(5000.0)
    assert envs(10.0, serial=True) == envs(5000.0, serial=True)


@pytest.mark.parametrize(("terminal", "width"), [(True, 60), (True, 200), (False, 60)])
def test_each_choice_is_printed_on_one_line(terminal: bool, width: int) -> None:
    made = plan(DESKTOP, **{"replay.capacity": 120_000_000})
    text = io.StringIO()
    console = Console(
        file=text, width=width, highlight=False, force_terminal=terminal, color_system=None
    )
    with Screen(console) as screen:
        screen.announce(made)
    lines = text.getvalue().splitlines()
    shown = {line.split()[0] for line in lines}
    hidden = {"--env.stack", "--algo.encoder", "--algo.shift", "--sampler.acting"}
    assert not shown & hidden, "they are for images"
    chosen = {f"--{name.replace('_', '-')}" for name in made.reasons}
    assert shown == {name for name in chosen - hidden if not name.startswith("--limits.")}
    assert len(lines) == len(shown)
    (placement,) = [line for line in lines if line.startswith("--replay.placement")]
    assert "pinned" in placement
    assert ("do not fit" in placement) == (width == 200 or not terminal), (
        "a file has room for the whole line"
    )
    assert max(map(len, lines)) <= width or not terminal


def test_where_reasons_have_room_they_are_wrapped_and_not_cut() -> None:
    made = plan(DESKTOP, **{"replay.capacity": 120_000_000})
    text = io.StringIO()
    print_choices(Console(file=text, width=90, force_terminal=True, color_system=None), made)
    assert "…" not in text.getvalue()
    assert max(map(len, text.getvalue().splitlines())) <= 90
    shown = " ".join(text.getvalue().split())
    assert " ".join(made.reasons["replay.placement"].text.split()) in shown


@pytest.mark.parametrize(("verbose", "limits"), [(False, 0), (True, 4)])
def test_limits_are_listed_if_all_is_asked_for(verbose: bool, limits: int) -> None:
    text = io.StringIO()
    print_choices(Console(file=text, width=90), plan(DESKTOP, verbose=verbose))
    assert text.getvalue().count("--limits.") == limits


def test_the_settings_are_one_line_if_they_are_not_listed() -> None:
    text = io.StringIO()
    print_choices(Console(file=text, width=90), dataclasses.replace(plan(LAPTOP), listed=False))
    (line,) = text.getvalue().splitlines()
    assert "sac on cpu, batch 128, 1 sampler of" in line
    assert "--verbose" in line
    assert len(line) <= 90


def test_a_given_value_is_kept() -> None:
    made = plan(DESKTOP, **{"learner.batch_size": 64, "sampler.processes": 3, "device": "cpu"})
    assert made.config.learner.batch_size == 64
    assert made.config.sampler.processes == 3
    assert made.config.device == "cpu"
    assert "learner.batch_size" not in made.reasons


def test_the_machine_decides() -> None:
    small, large = plan(LAPTOP).config, plan(DESKTOP).config
    assert (small.device, large.device) == ("cpu", "cuda")
    assert small.sampler.processes == 1
    assert large.sampler.processes == 15
    assert large.learner.batch_size > small.learner.batch_size  # type: ignore[operator]


def test_a_vector_environment_decides_how_many_environments_a_sampler_has() -> None:
    spec = dataclasses.replace(SPEC, vector_envs=12)
    made = make_plan(default_config(env=SPEC.id), spec, LAPTOP)
    assert made.config.sampler.envs_per_process == 12
    config = config_with(default_config(env=SPEC.id), {"sampler.envs_per_process": 8})
    with pytest.raises(UsageError, match="has 12"):
        make_plan(config, spec, LAPTOP)


def test_a_given_ratio_binds_samplers_and_learner() -> None:
    config = plan(LAPTOP, **{"learner.updates_per_step": 0.5}).config
    assert config.learner.ratio_bounds == (0.5, 0.5)


@pytest.mark.fault("F23")
def test_a_replay_larger_than_memory_is_refused_with_the_total() -> None:
    with pytest.raises(UsageError, match=r"needs .* GiB .*free\. Lower --replay\.capacity"):
        plan(LAPTOP, **{"replay.capacity": 100_000_000})


def test_the_automatic_replay_fits() -> None:
    tiny = dataclasses.replace(LAPTOP, memory_bytes=int(1.5 * GIB))
    huge = dataclasses.replace(SPEC, obs_shape=(376,))
    made = make_plan(default_config(env="Humanoid-v5"), huge, tiny)
    assert made.config.replay.capacity < 150_000  # type: ignore[operator]


ROW = 4 * (17 + 6 + 1 + 1 + 17 + 1)
ROWS_PER_GIB = GIB // ROW
SMALL_GPU = dataclasses.replace(DESKTOP, gpus=(Gpu("small", 4 * GIB),))


@pytest.mark.parametrize(
    ("machine", "capacity", "placement", "reason"),
    [
        (LAPTOP, "auto", "host", "on the CPU"),
        (DESKTOP, "auto", "gpu", "there is room"),
        (DESKTOP, 15 * ROWS_PER_GIB, "gpu", "there is room"),
        (DESKTOP, 19 * ROWS_PER_GIB, "pinned", "do not fit in 16"),
        (DESKTOP, 31 * ROWS_PER_GIB, "pinned", "half of the free host memory"),
        (DESKTOP, 40 * ROWS_PER_GIB, "host", "fit neither"),
        (SMALL_GPU, "auto", "gpu", "there is room"),
        (SMALL_GPU, 4 * ROWS_PER_GIB, "pinned", "do not fit"),
    ],
)
def test_the_replay_is_placed_where_it_fits(
    machine: Machine, capacity: Any, placement: str, reason: str
) -> None:
    made = plan(machine, **{"replay.capacity": capacity})
    assert made.config.replay.placement == placement
    assert reason in made.reasons["replay.placement"].text


def test_a_replay_too_large_for_the_given_placement_is_refused() -> None:
    knobs = {"replay.capacity": 25 * ROWS_PER_GIB, "replay.placement": "gpu"}
    with pytest.raises(UsageError, match=r"GPU memory \(replay of"):
        plan(DESKTOP, **knobs)
    with pytest.raises(UsageError, match=r"GiB of memory \(.*replay of"):
        plan(DESKTOP, **{"replay.capacity": 70 * ROWS_PER_GIB})


def test_the_automatic_replay_fills_its_placement() -> None:
    huge = dataclasses.replace(SPEC, obs_shape=(10_000,))
    made = make_plan(default_config(env="Large-v0"), huge, DESKTOP)
    capacity = made.config.replay.capacity
    assert made.config.replay.placement == "gpu"
    assert isinstance(capacity, int)
    assert 100_000 < capacity < 250_000
    assert plan(DESKTOP).config.replay.capacity == 1_000_000
    knobs = {"replay.placement": "pinned"}
    asked = make_plan(config_with(default_config(env="Large-v0"), knobs), huge, DESKTOP).config
    assert capacity < asked.replay.capacity < 450_000  # type: ignore[operator]


@pytest.mark.parametrize(("machine", "device"), [(LAPTOP, "cuda"), (DESKTOP, "cuda:1")])
@pytest.mark.fault("F57")
def test_a_missing_gpu_is_refused(machine: Machine, device: str) -> None:
    with pytest.raises(UsageError, match=f"--device {device}: no such GPU"):
        plan(machine, device=device)


@pytest.mark.fault("F74")
def test_a_run_that_a_limit_forbids_is_refused_with_the_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def limits(number: int) -> tuple[int, int]:
        return (100 if number == resource.RLIMIT_NOFILE else resource.RLIM_INFINITY), -1

    monkeypatch.setattr(resource, "getrlimit", limits)
    knobs = {"device": "cpu", "sampler.processes": 64, "sampler.envs_per_process": 1}
    config = config_with(default_config(env="x"), knobs)
    with pytest.raises(UsageError, match=r"files, and the limit is 100.*ulimit -n"):
        make_plan(config, SPEC, DESKTOP)


def test_a_run_directory_is_for_its_user_alone(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        made = plan(LAPTOP, runs=str(tmp_path / "runs"))
        run = create_run(made.config, made)
    finally:
        os.umask(before)
    assert run.path.stat().st_mode & 0o777 == 0o700
    assert (tmp_path / "runs").stat().st_mode & 0o777 == 0o755
    assert "resumed" not in run.read("config")


@pytest.mark.fault("F05")
def test_the_knob_decides_how_long_an_environment_may_take_to_be_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    knobs = {"runs": str(tmp_path), "limits.reset_s": 0.1, "limits.step_s": 0.1}
    config = config_with(default_config(env="x"), knobs)
    env = partial(fakes.SlowToMake, 2.0)
    server = Server(())
    processes = Processes(ForkServers(server, server))
    try:
        short = config_with(config, {"limits.construct_s": 0.2})
        with pytest.raises(RunFailed, match=r"raise --limits\.construct-s"):
            describe_env(env, short, processes, [])
        long = config_with(config, {"limits.construct_s": 60.0})
        assert describe_env(env, long, processes, []).construct_s >= 2.0  # type: ignore[operator]
    finally:
        processes.close()
