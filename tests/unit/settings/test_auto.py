"""Automatic settings: what the probe measures, what follows from it, what is cached."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from spreeze.algos import ALGORITHMS
from spreeze.images import Image
from spreeze.machine.facts import Gpu, Machine
from spreeze.settings import probe
from spreeze.settings.auto import resolve
from spreeze.settings.auto.rates import MEASURED_KNOBS, expected_hz
from spreeze.settings.auto.reason import Source
from spreeze.settings.config import Config, get_knob
from spreeze.settings.defaults import config_with, default_config
from spreeze.settings.probe import ProbeRequest, ProbeResult, load_cached, measure, save_cached
from spreeze.spec import EnvSpec, Trap

GIB = 2**30
SPEC = EnvSpec(
    id="HalfCheetah-v5",
    obs_shape=(17,),
    action_shape=(6,),
    action_low=(-1.0,) * 6,
    action_high=(1.0,) * 6,
    step_us=60.0,
)
LAPTOP = Machine(cores=8, memory_bytes=8 * GIB, gpus=())
DESKTOP = Machine(cores=16, memory_bytes=64 * GIB, gpus=(Gpu("RTX", 20 * GIB),))
ANSWER = ProbeResult(
    act_us={4: 15.0, 8: 18.0, 16: 24.0, 32: 40.0},
    thread_hz={1: 100.0, 2: 180.0, 4: 190.0},
    update_hz={256: 100.0, 512: 55.0, 1024: 29.0},
    too_large=None,
    seconds=1.0,
)
LARGE_GPU = {256: 2250.0, 1024: 1900.0, 2048: 1700.0, 4096: 1300.0, 8192: 972.0, 16384: 620.0}
SMALL_GPU = {256: 1500.0, 1024: 900.0, 2048: 470.0, 4096: 240.0, 8192: 120.0}


def tuned(machine: Machine, knobs: dict[str, Any] | None = None, **answer: Any) -> Config:
    config = config_with(default_config(env=SPEC.id), knobs or {})
    made = dataclasses.replace(ANSWER, **answer)
    return resolve(config, SPEC, machine, lambda _: made).config


def test_the_batch_grows_while_learning_gets_faster() -> None:
    assert tuned(DESKTOP, update_hz=LARGE_GPU).learner.batch_size == 2048
    assert tuned(DESKTOP, update_hz=SMALL_GPU).learner.batch_size == 1024
    assert tuned(LAPTOP).learner.batch_size == 256


def test_a_serial_run_is_the_same_however_many_cores_there_are() -> None:
    spec = dataclasses.replace(SPEC, step_us=5.0)
    config = config_with(default_config(env=SPEC.id), {"serial": True})
    chosen = [
        resolve(config, spec, dataclasses.replace(LAPTOP, cores=cores)).config for cores in (2, 16)
    ]
    few, many = (dataclasses.replace(each, learner=chosen[0].learner) for each in chosen)
    assert few.sampler == many.sampler
    assert few.sampler.processes == 1
    assert few.evaluator == many.evaluator


def test_the_reason_says_who_chose_the_algorithm() -> None:
    def reason(**knobs: Any) -> str | None:
        config = default_config(env="Swimmer-v5", **knobs)
        made = resolve(config_with(config, {"device": "cpu"}), SPEC, LAPTOP).reasons.get("algo")
        return None if made is None else made.text

    assert reason() == "preset swimmer"
    assert reason(preset="none") == "actions are Box"
    assert reason(algo="fastsac") is None, "the preset takes another"
    knobs = {"algo.spread": (0.5, 2.0), "device": "cpu"}
    named = config_with(default_config(env="Swimmer-v5", asked=["spread"]), knobs)
    assert resolve(named, SPEC, LAPTOP).reasons["algo"].text == "it has --algo.spread"


SMALL_SPEC = dataclasses.replace(SPEC, id="small", obs_shape=(3,), action_shape=(1,),
                                 action_low=(-1.0,), action_high=(1.0,))  # fmt: skip
CHOICES = dataclasses.replace(
    SMALL_SPEC, action_shape=(), action_low=(), action_high=(), num_actions=2
)


@pytest.mark.parametrize(
    ("spec", "ends", "device", "algo"),
    [
        (SPEC, None, "cpu", "sac"),
        (SPEC, 20.0, "cpu", "fastsac"),
        (SPEC, None, "cuda", "fastsac"),
        (SMALL_SPEC, 20.0, "cuda", "ppo"),
        (SMALL_SPEC, 1.0, "cpu", "sac"),
        (SMALL_SPEC, None, "cuda", "sac"),
        (CHOICES, None, "cpu", "dqn"),
        (CHOICES, 20.0, "cpu", "ppo"),
        (dataclasses.replace(CHOICES, obs_shape=(9,)), 20.0, "cpu", "dqn"),
    ],
)
def test_the_algorithm_follows_from_the_task(
    spec: EnvSpec, ends: float | None, device: str, algo: str
) -> None:
    config = config_with(default_config(env=spec.id, preset="none"), {"device": device})
    made = resolve(config, dataclasses.replace(spec, random_episode=ends), DESKTOP)
    assert made.config.algo == algo
    if ends and algo in ("fastsac", "ppo"):
        assert "after 20 steps" in made.reasons["algo"].text


def test_an_algorithm_without_the_knobs_that_were_given_is_not_chosen() -> None:
    spec = dataclasses.replace(CHOICES, random_episode=20.0)
    config = config_with(default_config(preset="none"), {"algo.n_step": 5, "device": "cpu"})
    made = resolve(config, spec, DESKTOP).config
    assert (made.algo, get_knob(made, "algo.n_step")) == ("dqn", 5)


@pytest.mark.parametrize(
    ("algo", "traps", "n_step"),
    [
        ("sac", (), 1),
        ("sac", (Trap.NO_REWARD,), 5),
        ("dqn", (Trap.GOALS,), 3),
        ("dqn", (Trap.NO_REWARD,), 5),
    ],
)
def test_transitions_reach_farther_where_rewards_are_rare(
    algo: str, traps: tuple[Trap, ...], n_step: int
) -> None:
    spec = dataclasses.replace(CHOICES if algo == "dqn" else SPEC, traps=traps)
    config = config_with(default_config(algo, "Mine-v0"), {"device": "cpu"})
    made = resolve(config, spec, LAPTOP).config
    assert get_knob(made, "algo.n_step") == n_step
    assert made.hyper.row_format().n_step == n_step
    given = resolve(config_with(config, {"algo.n_step": 2}), spec, LAPTOP).config
    assert given.hyper.row_format().n_step == 2


def test_noisy_rates_are_handled() -> None:
    """On a busy machine a larger batch may look faster."""
    for rates in ({256: 100.0, 512: 400.0}, {256: 100.0}, {256: 100.0, 512: 100.0, 1024: 9.0}):
        hz = expected_hz(dataclasses.replace(ANSWER, update_hz=rates), on_gpu=False)
        assert all(0 < rates[batch] <= value for batch, value in hz.items())


def test_the_reason_names_a_batch_that_did_not_fit() -> None:
    answer = dataclasses.replace(ANSWER, update_hz={256: 900.0, 1024: 800.0}, too_large=4096)
    config = default_config(env=SPEC.id)
    made = resolve(config, SPEC, DESKTOP, lambda _: answer)
    assert made.config.learner.batch_size == 1024
    assert made.probe == answer
    reason = made.reasons["learner.batch_size"]
    assert reason.source is Source.MEASURED
    assert "4,096 do not fit" in reason.text


def test_threads_are_added_while_they_scale() -> None:
    assert tuned(LAPTOP).learner.threads == 2, "two more threads gain 6 %"
    assert tuned(LAPTOP, thread_hz={1: 100.0, 2: 102.0}).learner.threads == 1
    assert tuned(LAPTOP, thread_hz={1: 100.0, 2: 195.0, 4: 380.0}).learner.threads == 4


def test_samplers_get_the_cores_that_are_left() -> None:
    few, many = tuned(LAPTOP, thread_hz={1: 1.0}), tuned(LAPTOP, thread_hz={1: 1.0, 4: 9.0})
    assert (few.sampler.processes, many.sampler.processes) == (7, 4)


FEW_SAMPLERS = {"sampler.processes": 2}
"""Few enough to leave room for many environments in each."""


@pytest.mark.parametrize(("step_us", "envs"), [(60.0, 32), (500.0, 16), (5000.0, 8)])
def test_more_fast_environments_share_a_forward_pass(step_us: float, envs: int) -> None:
    spec = dataclasses.replace(SPEC, step_us=step_us)
    config = config_with(default_config(env=SPEC.id), FEW_SAMPLERS)
    made = resolve(config, spec, LAPTOP, lambda _: ANSWER)
    assert made.config.sampler.envs_per_process == envs
    assert "acting adds 2 %" in made.reasons["sampler.envs_per_process"].text or step_us > 60


@pytest.mark.parametrize(("cores", "envs"), [(2, 32), (8, 16), (16, 8), (64, 4), (200, 4)])
def test_many_samplers_have_fewer_environments_each(cores: int, envs: int) -> None:
    """With many environments each is stepped rarely, and the effect of a new policy shows late."""
    machine = dataclasses.replace(DESKTOP, cores=cores)
    assert tuned(machine).sampler.envs_per_process == envs


@pytest.mark.parametrize(
    ("cores", "step_us", "processes", "share"),
    [
        (16, 5.0, 1, 1.0),
        (16, 60.0, 5, 0.2),
        (16, 150.0, 10, 0.2),
        (16, 500.0, 10, 0.3),
        (8, 500.0, 5, 0.2),
        (2, 500.0, 1, 0.1),
    ],
)
def test_slow_evaluations_use_many_processes_now_and_then(
    cores: int, step_us: float, processes: int, share: float
) -> None:
    """Samplers lend them their cores: none is reserved."""
    spec = dataclasses.replace(SPEC, step_us=step_us, max_episode_steps=1000)
    machine = dataclasses.replace(DESKTOP, cores=cores)
    config = default_config(env=SPEC.id)
    made = resolve(config, spec, machine, lambda _: ANSWER).config
    assert made.evaluator.processes == processes
    assert made.evaluator.share == pytest.approx(share)
    assert cores == made.learner_cores + made.sampler.processes


@pytest.mark.parametrize("threads", [16, 20])
def test_a_learner_on_all_cores_still_has_a_sampler_and_an_evaluator(threads: int) -> None:
    spec = dataclasses.replace(SPEC, step_us=500.0, max_episode_steps=1000)
    config = default_config(env=SPEC.id)
    made = resolve(config_with(config, {"learner.threads": threads}), spec, DESKTOP).config
    assert (made.sampler.processes, made.evaluator.processes) == (1, 1)


@pytest.mark.parametrize("knob", ["evaluator.every_steps", "evaluator.every_updates"])
def test_evaluations_by_steps_or_updates_take_the_time_that_they_need(knob: str) -> None:
    spec = dataclasses.replace(SPEC, step_us=500.0, max_episode_steps=1000)
    config = config_with(default_config(env=SPEC.id), {knob: 1000})
    asked = resolve(config, spec, DESKTOP).config.evaluator
    assert (asked.every_s, asked.share) == (0.0, 1.0)
    usual = resolve(default_config(env=SPEC.id), spec, DESKTOP).config.evaluator
    assert usual.every_s == 0.5
    assert usual.share != 1.0


def test_a_given_number_of_evaluators_is_kept() -> None:
    spec = dataclasses.replace(SPEC, step_us=500.0, max_episode_steps=1000)
    config = default_config(env=SPEC.id)
    few = resolve(config_with(config, {"evaluator.processes": 2}), spec, DESKTOP).config
    assert (few.evaluator.processes, few.evaluator.share) == (2, 1.0)
    always = resolve(config_with(config, {"evaluator.share": 1.0}), spec, DESKTOP).config
    assert (always.evaluator.processes, always.evaluator.share) == (10, 1.0)


def test_updates_between_publications_take_milliseconds() -> None:
    for rates in (LARGE_GPU, SMALL_GPU, {256: 40.0}):
        learner = tuned(DESKTOP, update_hz=rates).learner
        hz = expected_hz(dataclasses.replace(ANSWER, update_hz=rates), True)[learner.batch_size]  # type: ignore[index]
        assert 0.001 < learner.updates_per_publish / hz < 0.01  # type: ignore[operator]


@pytest.mark.parametrize(
    "knobs", [{"serial": True}, {"tuner.off": True}, dict.fromkeys(MEASURED_KNOBS, 4)]
)
def test_nothing_is_measured_if_it_decides_nothing(knobs: dict[str, Any]) -> None:
    def refuse(_: ProbeRequest) -> ProbeResult:
        raise AssertionError("measured")

    resolve(config_with(default_config(env=SPEC.id), knobs), SPEC, LAPTOP, refuse)


@pytest.mark.parametrize("name", MEASURED_KNOBS)
def test_a_given_knob_wins_over_the_probe(name: str) -> None:
    assert get_knob(tuned(LAPTOP, {name: 3}), name) == 3


def request_for(**changes: Any) -> ProbeRequest:
    hyper = dataclasses.asdict(ALGORITHMS["sac"].config(hidden=(8, 8)))
    made = ProbeRequest(
        algo="sac",
        hyper=hyper,
        spec=SPEC.to_json(),
        device="cpu",
        gpu="",
        precision="float32",
        cores=2,
        threads=None,
    )
    return dataclasses.replace(made, **changes)


@pytest.fixture
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


@pytest.mark.usefixtures("empty_cache")
def test_results_are_cached_per_request() -> None:
    save_cached(request_for(), ANSWER)
    assert load_cached(request_for()) == ANSWER
    slower = dataclasses.replace(SPEC, step_us=99.0, construct_s=9.0, reset_s=9.0).to_json()
    assert load_cached(request_for(spec=slower)) == ANSWER, "timings are not part of the request"
    hyper = request_for().hyper
    assert load_cached(request_for(hyper=hyper | {"lr": 0.1})) == ANSWER, "nor is the learning rate"
    other = dataclasses.replace(SPEC, id="Walker2d-v5").to_json()
    wide = hyper | {"hidden": (9, 9)}
    for changes in (
        *({"cores": 4}, {"gpu": "RTX"}, {"precision": "bf16"}),
        *({"spec": other}, {"hyper": wide}),
    ):
        assert load_cached(request_for(**changes)) is None


@pytest.mark.usefixtures("empty_cache")
@pytest.mark.parametrize("content", ["", "{}", "[1]", '{"act_us": {"x": 1}}'])
def test_a_corrupt_cache_file_is_ignored(content: str) -> None:
    save_cached(request_for(), ANSWER)
    request_for().path().write_text(content)
    assert load_cached(request_for()) is None


def test_the_probe_measures_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "CPU_BATCHES", (32, 64, 128))
    monkeypatch.setattr(probe, "TURN_S", 0.01)
    made = measure(request_for(cores=4))
    assert list(made.update_hz) == [32, 64, 128]
    assert list(made.thread_hz) == [1, 2]
    assert list(made.act_us) == [4, 8, 16, 32]
    everything = [*made.act_us.values(), *made.update_hz.values(), *made.thread_hz.values()]
    assert all(value > 0 for value in everything)


@pytest.mark.fault("F54")
def test_out_of_memory_ends_the_search_and_is_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    def rate(_question: ProbeRequest, _spec: EnvSpec, batch: int) -> float:
        if batch > 1024:
            raise RuntimeError("CUDA out of memory")
        return 100.0

    monkeypatch.setattr(probe, "update_rate", rate)
    made = measure(request_for(device="cuda", threads=1))
    assert (list(made.update_hz), made.too_large) == ([256, 1024], 2048)


def test_images_are_shifted_where_actions_are_continuous() -> None:
    image = Image(path=(), shape=(40, 40, 3))
    seen = dataclasses.replace(SPEC, obs_shape=(4800,), images=(image,), stack=4)
    discrete = {"num_actions": 3, "action_shape": (), "action_low": (), "action_high": ()}
    steered = dataclasses.replace(seen, **discrete)
    for algo, spec, shift in (
        ("sac", seen, 4),
        ("fasttd3", seen, 4),
        ("dqn", steered, 0),
        ("sac", SPEC, 0),
    ):
        config = config_with(default_config(env=SPEC.id, algo=algo), {"device": "cpu"})
        assert resolve(config, spec, LAPTOP).config.hyper.image_shift() == shift
        asked = config_with(config, {"algo.shift": 7})
        assert resolve(asked, spec, LAPTOP).config.hyper.image_shift() == 7
    config = config_with(default_config(env=SPEC.id, algo="ppo"), {"device": "cpu"})
    assert resolve(config, seen, LAPTOP).config.hyper.image_shift() == 0
