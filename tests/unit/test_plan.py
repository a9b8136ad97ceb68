"""The plan: every "auto" filled with a reason, and refused where the machine is too small."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from spreeze.config import config_with, default_config, knob, knob_names
from spreeze.errors import UsageError
from spreeze.placement import Gpu, Machine
from spreeze.plan import Plan, make_plan
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


def plan(machine: Machine, **knobs: Any) -> Plan:
    return make_plan(config_with(default_config(env=SPEC.id), knobs), SPEC, machine)


@pytest.mark.parametrize("machine", [LAPTOP, DESKTOP, dataclasses.replace(LAPTOP, cores=1)])
@pytest.mark.parametrize("serial", [True, False])
def test_no_auto_is_left_and_every_choice_has_a_reason(machine: Machine, serial: bool) -> None:
    config = config_with(default_config(env=SPEC.id), {"serial": serial})
    made = make_plan(config, SPEC, machine)
    automatic = [name for name in knob_names(config) if knob(config, name) == "auto"]
    left = [name for name in automatic if knob(made.config, name) == "auto"]
    assert left in ([], ["learner.updates_per_step"]), "a free ratio stays free"
    assert set(made.reasons) == set(automatic) - set(left)
    assert all(made.reasons.values())


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
    assert large.sampler.processes == 14
    assert large.learner.batch_size > small.learner.batch_size  # type: ignore[operator]


def test_a_vector_environment_decides_how_many_environments_a_sampler_has() -> None:
    spec = dataclasses.replace(SPEC, vector_envs=12)
    made = make_plan(default_config(env=SPEC.id), spec, LAPTOP)
    assert made.config.sampler.envs_per_process == 12
    config = config_with(default_config(env=SPEC.id), {"sampler.envs_per_process": 8})
    with pytest.raises(UsageError, match="has 12"):
        make_plan(config, spec, LAPTOP)


def test_a_ratio_that_is_given_binds_both_sides() -> None:
    config = plan(LAPTOP, **{"learner.updates_per_step": 0.5}).config
    assert config.learner.ratio_bounds == (0.5, 0.5)


def test_a_replay_larger_than_the_memory_is_refused_with_the_sum() -> None:
    with pytest.raises(UsageError, match=r"needs .* GiB .*free\. Lower --replay\.capacity"):
        plan(LAPTOP, **{"replay.capacity": 100_000_000})


def test_the_automatic_replay_fits() -> None:
    tiny = dataclasses.replace(LAPTOP, memory_bytes=int(1.5 * GIB))
    huge = dataclasses.replace(SPEC, obs_shape=(376,))
    made = make_plan(default_config(env="Humanoid-v5"), huge, tiny)
    assert made.config.replay.capacity < 150_000  # type: ignore[operator]


@pytest.mark.parametrize(("machine", "device"), [(LAPTOP, "cuda"), (DESKTOP, "cuda:1")])
def test_a_gpu_that_is_not_there_is_refused(machine: Machine, device: str) -> None:
    with pytest.raises(UsageError, match=f"--device {device}: no such GPU"):
        plan(machine, device=device)
