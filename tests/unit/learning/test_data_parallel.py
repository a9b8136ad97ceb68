"""Devices that share each batch: their rows, their numbers, their failures, and when they are chosen."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from functools import partialmethod
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import cases
from learner_stage import LearnerStage
from ranked import whole
from spreeze import algos
from spreeze.algos import ALGORITHMS
from spreeze.errors import UsageError
from spreeze.learning.compiled.job import fuse_step
from spreeze.learning.compiled.key import CompileKey
from spreeze.learning.compiled.load import load_step
from spreeze.learning.data_parallel.shards import ShardedReplay
from spreeze.learning.data_parallel.updater import DataParallelUpdater
from spreeze.learning.replay import Replay
from spreeze.learning.state import init_state, named
from spreeze.learning.updater import Updater, UpdateSetup
from spreeze.machine.facts import Gpu, Machine
from spreeze.run.plan import make_plan
from spreeze.settings.auto import resolve
from spreeze.settings.checks import check_config
from spreeze.settings.defaults import config_with, default_config
from spreeze.settings.probe import ProbeRequest, ProbeResult, measure
from spreeze.spec import EnvSpec
from spreeze.store.checkpoint import load_training

RANKS, ROWS = 2, 800
GIB = 2**30
TWO_GPUS = Machine(16, 64 * GIB, (Gpu("RTX", 20 * GIB), Gpu("RTX", 20 * GIB)))


class SameDraws:
    """Stands for the random numbers of updaters: those of one device are those of all ranks together."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._calls: dict[Updater, int] = {}
        monkeypatch.setattr(Updater, "_draw_random", partialmethod(self))

    def __call__(self, updater: Updater, num: int, batch_size: int) -> tuple[Tensor, Tensor]:
        call = self._calls[updater] = self._calls.get(updater, 0) + 1
        rounds, ranks = updater._round, range(RANKS)
        of_each = [self._drawn(updater, call, num, rounds * batch_size // RANKS, i) for i in ranks]
        if updater.num_ranks == RANKS:
            index, noise = of_each[updater._random is not None]
            return (index + 0.5) / (ROWS / RANKS), noise
        index = torch.stack(
            [
                whole([each[0][i] * RANKS + r for r, each in enumerate(of_each)], rounds)
                for i in range(num)
            ]
        )
        return (index + 0.5) / ROWS, torch.stack(
            [whole([each[1][i] for each in of_each], rounds, dim=1) for i in range(num)]
        )

    def _drawn(
        self, updater: Updater, call: int, num: int, rows: int, rank: int
    ) -> tuple[Tensor, Tensor]:
        source = torch.Generator().manual_seed(100 * call + rank)
        index = torch.randint(ROWS // RANKS, (num, rows), generator=source)
        return index, torch.randn((num, 2, rows, updater._action_size), generator=source)


@pytest.mark.parametrize(
    ("algo", "knobs"),
    [
        ("sac", {}),
        (
            "td3",
            {"algo.normalise_obs": True, "algo.policy_delay": 3},
        ),
        ("dqn", {"algo.max_grad_norm": 0.1}),
    ],
)
def test_a_learner_on_two_ranks_computes_the_numbers_of_one_device(
    algo: str, knobs: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    states, policies, metrics = [], [], []
    for device in ("cpu", "cpu+cpu"):
        SameDraws(monkeypatch)
        stage = LearnerStage(tmp_path / device, algo, device=device, **knobs)
        stage.write(ROWS)
        learner = stage.start()
        stage.work(learner, 6)
        assert learner._updates > 20
        states.append(named(learner._updater.state))
        policies.append(learner._updater.policy)
        metrics.append(learner._updater.metrics())
        learner.close()
        stage.close()
    one, two = states
    for name in one:
        torch.testing.assert_close(two[name], one[name], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(policies[1], policies[0], rtol=1e-4, atol=1e-5)
    assert metrics[1] == pytest.approx(metrics[0], rel=1e-3, abs=1e-4), "of all rows of the batch"


def updater_of(seed: int, num: int = 64) -> DataParallelUpdater:
    algorithm = cases.built("sac", "Box")
    shards = [Replay(cases.layout_of(algorithm), num // RANKS, cases.CPU) for _ in range(RANKS)]
    replay = ShardedReplay(shards)
    replay.insert(cases.random_rows(algorithm, num))
    torch.manual_seed(seed)
    state = init_state(algorithm, seed, cases.CPU)
    setup = UpdateSetup(algorithm, shards[0], state, 16, (1e-2, 0.05), 2)
    return DataParallelUpdater(setup, replay, seeds=[seed + 1])


def assert_equal_ranks(updater: DataParallelUpdater) -> None:
    first, *others = updater._ranks
    for other in others:
        for name, vector in named(first.state).items():
            assert torch.equal(named(other.state)[name], vector), name


def test_compiled_ranks_exchange_what_plain_ones_do(tmp_path: Path) -> None:
    key = CompileKey(
        algo="sac",
        hyper=dataclasses.asdict(ALGORITHMS["sac"].config(hidden=(16,), lr=1e-3, tau=0.01)),
        spec=cases.BOX.to_json(),
        capacity=32,
        batch_size=16,
        device="cpu",
        precision="float32",
        threads=1,
        num_ranks=RANKS,
        fused=True,
    )
    fuse_step(key)
    states = []
    for compiled in (False, True):
        updater = updater_of(seed=3)
        if compiled:
            for rank in updater._ranks:
                rank.install_compiled(16, load_step(key.path(), cases.CPU))
        for _ in range(3):
            updater.run()
        assert_equal_ranks(updater)
        states.append({name: vector.clone() for name, vector in named(updater.state).items()})
        updater.close()
    for name, plain in states[0].items():
        torch.testing.assert_close(states[1][name], plain, rtol=1e-3, atol=1e-4)


def test_ranks_draw_different_rows_and_repeat_with_their_seeds() -> None:
    states = []
    for _ in range(2):
        updater = updater_of(seed=5)
        updater.run()
        assert_equal_ranks(updater)
        draws = [rank._draw_random(1, 16)[0] for rank in updater._ranks]
        assert not torch.equal(*draws)
        states.append({name: vector.clone() for name, vector in named(updater.state).items()})
        updater.close()
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])


@pytest.mark.parametrize("failing", range(RANKS))
def test_a_rank_that_fails_ends_the_update_of_all_and_the_next_one_works(
    failing: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    updater = updater_of(seed=0)
    updater.run()
    before = {name: vector.clone() for name, vector in named(updater.state).items()}
    run = Updater.run

    def fail(rank: Updater) -> None:
        if rank is updater._ranks[failing]:
            raise ZeroDivisionError("the rank fell over")
        run(rank)

    with monkeypatch.context() as patch:
        patch.setattr(Updater, "run", fail)
        with pytest.raises(ZeroDivisionError, match="the rank fell over") as caught:
            updater.run()
    assert caught.value.__notes__ == [f"This was rank {failing}, on cpu."]
    for name, vector in before.items():
        assert torch.equal(named(updater.state)[name], vector)
    updater.run()
    assert_equal_ranks(updater)
    updater.close()


def test_a_state_is_restored_on_all_ranks() -> None:
    updater = updater_of(seed=0)
    updater.run()
    saved = {name: vector.clone() for name, vector in named(updater.state).items()}
    updater.run()
    updater.restore(saved)  # type: ignore[arg-type]
    assert_equal_ranks(updater)
    assert all(torch.equal(named(updater.state)[name], vector) for name, vector in saved.items())
    updater.close()


def test_shards_hold_the_rows_that_one_replay_holds() -> None:
    algorithm, rng = cases.built("sac", "Box"), np.random.default_rng(0)
    layout = cases.layout_of(algorithm)
    one = Replay(layout, 40, cases.CPU)
    shards = ShardedReplay([Replay(layout, 20, cases.CPU) for _ in range(RANKS)])
    for i in range(60):
        rows = cases.random_rows(algorithm, int(rng.integers(1, 60 if i % 7 == 0 else 12)), seed=i)
        for replay in (one, shards):
            replay.insert(rows)
        assert (shards.num_rows, shards.oldest) == (one.num_rows, one.oldest)
        assert torch.equal(shards.newest(17), one.newest(17))
        num = int(rng.integers(0, one.num_rows + 1))
        found = [torch.zeros(num, layout.width) for _ in range(2)]
        one.start_reading(one.oldest, found[0])
        shards.start_reading(shards.oldest, found[1])
        assert shards.has_read
        assert torch.equal(*found)
    shards.insert_from(lambda buffer: buffer[:0])
    assert abs(shards.shards[0].num_rows - shards.shards[1].num_rows) <= 1


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[LearnerStage]:
    made = LearnerStage(tmp_path / "r", device="cpu+cpu", **{"checkpoint.every_s": 1.0})
    yield made
    made.close()


@pytest.mark.parametrize("device", ["cpu", "cpu+cpu"])
def test_rows_and_networks_continue_on_any_number_of_ranks(
    stage: LearnerStage, device: str
) -> None:
    stage.write(320)
    learner = stage.start()
    stage.work(learner, 30, seconds=0.1)
    learner.close()
    saved = load_training(stage.folder / "checkpoints")
    stage.config = dataclasses.replace(stage.config, device=device)
    stage.write(16)
    successor = stage.start(resume=stage.folder)
    stage.work(successor)
    stage.write(16)
    stage.work(successor)
    assert successor._updates == saved.updates + successor._updater.chunk
    assert sorted(stage.numbers(successor)) == list(range(stage.num_rows)), "every row once"
    successor.close()


def test_a_learner_whose_rank_fails_ends_and_its_successor_continues(
    stage: LearnerStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage.write(320)
    learner = stage.start()
    while not (stage.folder / "checkpoints" / "last").exists():
        stage.work(learner, 1, seconds=0.1)
    with monkeypatch.context() as patch:

        def fail(rank: Updater) -> None:
            raise MemoryError("on every rank")

        patch.setattr(Updater, "run", fail)
        with pytest.raises(MemoryError):
            stage.work(learner)
    learner._saver._pool.shutdown()  # type: ignore[union-attr]
    learner._updater.close()
    stage.write(16)
    successor = stage.start(resume=stage.folder)
    stage.work(successor)
    stage.write(16)
    stage.work(successor, 3)
    assert successor._updates > load_training(stage.folder / "checkpoints").updates
    assert sorted(stage.numbers(successor)) == list(range(stage.num_rows)), "every row once"
    successor.close()


def test_an_algorithm_that_does_not_share_batches_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    alone = dataclasses.replace(ALGORITHMS["sac"], shares_batches=False)
    monkeypatch.setitem(algos.ALGORITHMS, "sac", alone)
    config = config_with(default_config("sac", env="x"), {"device": "cpu+cpu"})
    with pytest.raises(UsageError, match=r"sac does not say .* use td3, ddpg, .*ppo"):
        make_plan(config, cases.BOX, TWO_GPUS)


def test_a_batch_that_cannot_be_divided_is_refused() -> None:
    config = config_with(default_config(env="x"), {"device": "cpu+cpu", "learner.batch_size": 33})
    (problem,) = check_config(config)
    assert "--learner.batch-size 33 cannot be divided among the 2 devices" in problem
    assert "32 can" in problem


@pytest.mark.parametrize(("name", "kind"), cases.CASES)
def test_every_algorithm_gets_a_plan(name: str, kind: str) -> None:
    spec: EnvSpec = cases.SPECS[kind]
    config = config_with(default_config(name, env="x"), {"device": "cuda:0+cuda:1"})
    made = make_plan(config, spec, TWO_GPUS).config
    assert made.learner.batch_size % RANKS == 0  # type: ignore[operator]
    assert made.replay.placement == "gpu"


def test_each_gpu_needs_memory_for_its_shard() -> None:
    knobs = {"device": "cuda:0+cuda:1", "replay.capacity": 200_000_000, "replay.placement": "gpu"}
    config = config_with(default_config("sac", env="x"), knobs)
    make_plan(config, cases.BOX, TWO_GPUS)
    small = dataclasses.replace(TWO_GPUS, gpus=(Gpu("RTX", 20 * GIB), Gpu("RTX", 4 * GIB)))
    with pytest.raises(UsageError, match="memory on each GPU"):
        make_plan(config, cases.BOX, small)


def chosen(split: float, shared: float, algo: str = "sac", **answer: Any) -> tuple[str, str]:
    """The device that is chosen from updates/s at two batch sizes, where one GPU makes 500; and why."""

    def ask(request: ProbeRequest) -> ProbeResult:
        assert request.ranks == ("cuda:0", "cuda:1")
        rates = {"split_hz": split if request.second else 0, "shared_hz": shared}
        return ProbeResult(
            act_us={8: 40.0},
            thread_hz={},
            update_hz={256: 1000.0, 8192: 500.0},
            **{name: {8192: rate} for name, rate in rates.items() if rate},
            **answer,
            too_large=None,
            seconds=1.0,
        )

    spec = cases.DISCRETE if algo == "dqn" else cases.BOX
    made = resolve(default_config(algo, env="x"), spec, TWO_GPUS, ask)
    return made.config.device, str(made.reasons["device"])


def test_one_gpu_a_split_and_shared_batches_are_compared_and_the_reason_is_said() -> None:
    device, reason = chosen(800, 900)
    assert device == "cuda:0+cuda:1"
    assert (
        "500 on one GPU at batch 8192, 800 with critic and actor on two at batch 8192, "
        "900 with 2 that share each batch at batch 8192" in reason
    )
    assert chosen(900, 800)[0] == "cuda:0,cuda:1"
    assert chosen(510, 520)[0] == "cuda"
    assert chosen(0, 900, "dqn")[0] == "cuda:0+cuda:1", "it has no actor to split off"
    device, reason = chosen(800, 0, not_shared="NCCL said no")
    assert device == "cuda:0,cuda:1"
    assert "batches could not be shared (NCCL said no)" in reason


def test_the_probe_measures_shared_batches_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("spreeze.settings.probe.CPU_BATCHES", (32, 64))
    monkeypatch.setattr("spreeze.settings.update_rates.TURN_S", 0.01)
    question = ProbeRequest(
        algo="sac",
        hyper=dataclasses.asdict(ALGORITHMS["sac"].config(hidden=(8, 8))),
        spec=cases.BOX.to_json(),
        device="cpu",
        ranks=("cpu", "cpu"),
        gpu="",
        precision="float32",
        cores=2,
        threads=1,
    )
    made = measure(question)
    assert list(made.shared_hz) == [32, 64]
    assert all(rate > 0 for rate in made.shared_hz.values())
    assert made.not_shared is None
