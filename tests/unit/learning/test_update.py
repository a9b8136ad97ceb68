"""The update as a pure function of flat vectors, against plain modules and optimisers."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch

import cases
from spreeze.algos import ALGORITHMS
from spreeze.algos.sac import SACConfig, build
from spreeze.bench.reference import PLAIN
from spreeze.learning.minibatch import draw, gather
from spreeze.learning.replay import Replay
from spreeze.learning.state import init_state
from spreeze.learning.update import update
from spreeze.learning.updater import Updater, UpdateSetup
from spreeze.rows import as_matrix, row_layout

SPEC = cases.BOX
CPU = torch.device("cpu")
CONFIG = SACConfig(hidden=(16, 16))


@pytest.mark.parametrize("name", PLAIN)
def test_an_update_equals_plain_modules_and_optimisers(name: str) -> None:
    """Against modules and torch.optim, for the algorithms whose losses are short that way."""
    (kind,) = ALGORITHMS[name].actions
    algorithm = cases.built(name, kind, hidden=(16, 16), normalise_reward=False)
    state = init_state(algorithm, 0, CPU)
    plain = PLAIN[name](algorithm, state, (1e-2, 0.05))
    rates = (torch.tensor(1e-2), torch.tensor(0.05))
    generator = torch.Generator().manual_seed(1)
    rows = 32 * algorithm.config.critic_updates()
    for i in range(25):
        batch = cases.random_batch(algorithm, rows, seed=i)
        noise = torch.randn(2, rows, algorithm.spec.action_size, generator=generator)
        plain.update(batch, noise)
        with torch.no_grad():
            state, _ = update(algorithm, state, batch, noise, *rates)
    for network, expected in plain.vectors().items():
        torch.testing.assert_close(state[network], expected, rtol=1e-3, atol=1e-4)


def test_a_one_state_problem_has_the_value_of_the_geometric_series() -> None:
    """A reward of 1 forever with discount 0.9 is worth 10, apart from the entropy bonus."""
    algorithm = build(SACConfig(hidden=(32,), init_alpha=1e-8), SPEC)
    replay = Replay(row_layout(SPEC), 64, CPU)
    rows = np.zeros(64, row_layout(SPEC).dtype)
    rows["reward"], rows["discount"] = 1.0, 0.9
    rows["action"] = np.random.default_rng(0).uniform(-1, 1, (64, 2))
    replay.insert(rows)
    state = init_state(algorithm, 0, CPU)
    updater = Updater(UpdateSetup(algorithm, replay, state, 32, (3e-3, 0.05)))
    torch.manual_seed(0)
    for _ in range(1500):
        updater.run()
        updater.state["actor"][-1] = -18.0  # hold the temperature near zero
    assert updater.metrics()["q_mean"] == pytest.approx(10.0, abs=0.5)


def test_replay_is_a_ring_of_the_newest_rows() -> None:
    layout = row_layout(SPEC)
    replay = Replay(layout, 10, CPU)
    rows = np.zeros(4, layout.dtype)
    for start in range(0, 24, 4):
        rows["reward"] = np.arange(start, start + 4)
        replay.insert(rows)
    assert replay.num_rows == 10
    column = layout.columns()["reward"]
    assert sorted(replay.data[:, column].ravel().tolist()) == list(range(14, 24))


def test_one_insert_larger_than_the_replay_keeps_its_newest_rows() -> None:
    layout = row_layout(SPEC)
    replay = Replay(layout, 10, CPU)
    rows = np.zeros(25, layout.dtype)
    rows["reward"] = np.arange(25)
    replay.insert(rows)
    column = layout.columns()["reward"]
    assert sorted(replay.data[:, column].ravel().tolist()) == list(range(15, 25))


def test_a_batch_holds_stored_rows_and_nothing_else() -> None:
    layout = row_layout(SPEC)
    replay = Replay(layout, 100, CPU)
    rows = np.zeros(7, layout.dtype)
    as_matrix(rows)[:] = np.random.default_rng(0).normal(size=(7, layout.width))
    replay.insert(rows)
    uniform = torch.tensor([0.0, 0.5, 0.999999999, 1.0 - 2**-24])
    places = draw(replay.data, replay.window, uniform)
    batch = gather(replay.data, places, layout)
    for i, index in enumerate([0, 3, 6, 6]):
        np.testing.assert_array_equal(batch.obs[i], rows["obs"][index])
        np.testing.assert_array_equal(batch.next_obs[i], rows["next_obs"][index])
        assert batch.reward[i] == rows["reward"][index]


def test_columns_are_the_fields_of_the_record() -> None:
    layout = row_layout(SPEC)
    rows = np.zeros(3, layout.dtype)
    rows["obs"], rows["action"], rows["next_obs"] = 1.0, 2.0, 3.0
    matrix = as_matrix(rows)
    assert matrix.shape == (3, layout.width)
    assert layout.row_bytes == layout.dtype.itemsize
    for name, value in (("obs", 1.0), ("action", 2.0), ("next_obs", 3.0)):
        assert (matrix[:, layout.columns()[name]] == value).all()
    ends = [(c.start, c.stop) for c in layout.columns().values()]
    assert all(a[1] == b[0] for a, b in pairwise(ends))


def test_inputs_stay_the_same_while_new_rows_arrive() -> None:
    """Verification runs the plain and the compiled update on them in turn, while rows arrive."""
    algorithm = build(CONFIG, SPEC)
    layout = row_layout(SPEC)
    replay = Replay(layout, 100, CPU)
    rows = np.zeros(40, layout.dtype)
    as_matrix(rows)[:] = np.random.default_rng(0).normal(size=(40, layout.width))
    replay.insert(rows[:20])
    state = init_state(algorithm, 0, CPU)
    updater = Updater(UpdateSetup(algorithm, replay, state, 32, (1e-3, 0.01)))
    inputs = updater.inputs(32)
    before = updater.plain(*inputs)
    replay.insert(rows[20:])
    torch.testing.assert_close(updater.plain(*inputs), before, rtol=0, atol=0)


DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("name", "kind"), cases.CASES)
def test_the_fastest_way_gives_the_numbers_of_the_plain_one(
    name: str, kind: str, device: str
) -> None:
    algorithm = cases.built(name, kind)
    replay = cases.filled_replay(algorithm, 300, torch.device(device))

    def updater() -> Updater:
        state = init_state(algorithm, 0, replay.device)
        return Updater(UpdateSetup(algorithm, replay, state, 32, (1e-3, 0.01), chunk=4))

    plain, fast = updater(), updater()
    fast.run()  # preparing must leave no trace
    fast = updater()
    fast._prepared[32] = fast._prepare()
    torch.manual_seed(5)
    for _ in range(5):
        plain.run_eager()
    torch.manual_seed(5)
    for _ in range(5):
        fast.run()
    assert float(fast.state["updates"]) == 20
    for key, tensor in plain.state.items():
        torch.testing.assert_close(fast.state[key], tensor, rtol=1e-2, atol=1e-3)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU: graphs are captured there")
@pytest.mark.parametrize("name", ["sac", "fastsac"])
def test_batch_sizes_take_turns_while_new_rows_arrive(name: str) -> None:
    """A graph captured for one size must see the networks and the rows as they are now."""
    algorithm = cases.built(name, "Box")
    replay = cases.filled_replay(algorithm, 300, torch.device("cuda"))
    states = [init_state(algorithm, 0, replay.device) for _ in range(2)]
    plain, fast = (
        Updater(UpdateSetup(algorithm, replay, state, 32, (1e-3, 0.01), 4)) for state in states
    )
    for fast.batch_size in (32, 48):
        fast.prepare()
    for turn, size in enumerate((32, 48, 32, 32, 48, 48, 32)):
        for updater, run in ((plain, plain.run_eager), (fast, fast.run)):
            updater.batch_size = size
            torch.manual_seed(turn)
            for _ in range(3):
                run()
        for key, tensor in plain.state.items():
            torch.testing.assert_close(fast.state[key], tensor, rtol=1e-3, atol=1e-4)
        replay.insert(cases.random_rows(algorithm, 170, seed=turn + 1))  # the ring goes round
