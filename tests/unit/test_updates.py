"""The update as a pure function of flat vectors, against plain modules and optimisers."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch

from spreeze.algos import ALGORITHMS
from spreeze.algos.sac import SACConfig, build
from spreeze.bench.plain import PLAIN
from spreeze.replay import Replay, gather
from spreeze.spec import Batch, EnvSpec, as_matrix, transition_layout
from spreeze.updates import Updater, init_state, update

SPEC = EnvSpec(
    id="x", obs_shape=(4,), action_shape=(2,), action_low=(-1.0, -1.0), action_high=(1.0, 1.0)
)
CPU = torch.device("cpu")
CONFIG = SACConfig(hidden=(16, 16))


def random_batch(size: int, generator: torch.Generator) -> Batch:
    draw = torch.randn(size, 4 + 2 + 1 + 1 + 4, generator=generator)
    discount = (draw[:, 7] > -1).float() * 0.99
    return Batch(draw[:, :4], draw[:, 4:6].tanh(), draw[:, 6], discount, draw[:, 8:])


@pytest.mark.parametrize("name", ALGORITHMS)
def test_an_update_equals_plain_modules_and_optimisers(name: str) -> None:
    config = ALGORITHMS[name].config(hidden=(16, 16))
    algorithm = ALGORITHMS[name].build(config, SPEC)
    state = init_state(algorithm, 0, CPU)
    plain = PLAIN[name](config, SPEC, algorithm, state, (1e-2, 0.05))
    rates = (torch.tensor(1e-2), torch.tensor(0.05))
    generator = torch.Generator().manual_seed(1)
    for _ in range(25):
        batch = random_batch(32, generator)
        noise = torch.randn(2, 32, 2, generator=generator)
        plain.update(batch, noise)
        with torch.no_grad():
            state, _ = update(algorithm, state, batch, noise, *rates)
    for network, expected in plain.vectors().items():
        torch.testing.assert_close(state[network], expected, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("name", ALGORITHMS)
class TestEveryAlgorithm:
    """What holds for each algorithm in the registry."""

    def test_losses_are_finite_and_train_only_their_own_network(self, name: str) -> None:
        algorithm = ALGORITHMS[name].build(ALGORITHMS[name].config(hidden=(16,)), SPEC)
        state = init_state(algorithm, 0, CPU)
        generator = torch.Generator().manual_seed(0)
        batch, noise = random_batch(16, generator), torch.randn(16, 2, generator=generator)
        leaves = {k: state[k].clone().requires_grad_() for k in ("actor", "critic", "target")}
        loss, _ = algorithm.critic_loss(
            leaves["critic"], leaves["target"], leaves["actor"], batch, noise
        )
        grads = torch.autograd.grad(loss, list(leaves.values()), allow_unused=True)
        assert torch.isfinite(loss)
        assert grads[0] is None or not grads[0].any(), "the critic's loss must not move the actor"
        assert grads[1] is not None
        assert grads[1].any()
        assert grads[2] is None or not grads[2].any(), "nor the target"

    def test_an_update_is_pure(self, name: str) -> None:
        algorithm = ALGORITHMS[name].build(ALGORITHMS[name].config(hidden=(16,)), SPEC)
        state = init_state(algorithm, 0, CPU)
        before = {key: tensor.clone() for key, tensor in state.items()}
        generator = torch.Generator().manual_seed(0)
        batch, noise = random_batch(16, generator), torch.randn(2, 16, 2, generator=generator)
        rates = (torch.tensor(1e-3), torch.tensor(0.01))
        with torch.no_grad():
            first, _ = update(algorithm, state, batch, noise, *rates)
            second, _ = update(algorithm, state, batch, noise, *rates)
        assert all(torch.equal(state[key], before[key]) for key in state)
        assert all(torch.equal(first[key], second[key]) for key in state)
        assert not torch.equal(first["critic"], state["critic"])

    def test_the_policy_is_the_head_of_the_actor_vector(self, name: str) -> None:
        algorithm = ALGORITHMS[name].build(ALGORITHMS[name].config(hidden=(16,)), SPEC)
        assert algorithm.policy_size <= algorithm.actor_shapes.size
        actor, critic = algorithm.init(torch.Generator().manual_seed(0))
        assert actor.shape == (algorithm.actor_shapes.size,)
        assert critic.shape == (algorithm.critic_shapes.size,)


def test_a_one_state_problem_has_the_value_of_the_geometric_series() -> None:
    """Reward 1 for ever with discount 0.9 is worth 10, less what the entropy adds."""
    algorithm = build(SACConfig(hidden=(32,), init_alpha=1e-8), SPEC)
    replay = Replay(transition_layout(SPEC), 64, CPU)
    rows = np.zeros(64, transition_layout(SPEC).dtype)
    rows["reward"], rows["discount"] = 1.0, 0.9
    rows["action"] = np.random.default_rng(0).uniform(-1, 1, (64, 2))
    replay.insert(rows)
    updater = Updater(algorithm, replay, init_state(algorithm, 0, CPU), 32, (3e-3, 0.05))
    torch.manual_seed(0)
    for _ in range(1500):
        updater.run()
        updater.state["actor"][-1] = -18.0  # hold the temperature at nothing
    assert updater.metrics()["q_mean"] == pytest.approx(10.0, abs=0.5)


def test_replay_is_a_ring_of_the_newest_rows() -> None:
    layout = transition_layout(SPEC)
    replay = Replay(layout, 10, CPU)
    rows = np.zeros(4, layout.dtype)
    for start in range(0, 24, 4):
        rows["reward"] = np.arange(start, start + 4)
        replay.insert(rows)
    assert replay.num_rows == 10
    column = layout.columns()["reward"]
    assert sorted(replay.data[:, column].ravel().tolist()) == list(range(14, 24))


def test_one_insert_larger_than_the_replay_keeps_its_newest_rows() -> None:
    layout = transition_layout(SPEC)
    replay = Replay(layout, 10, CPU)
    rows = np.zeros(25, layout.dtype)
    rows["reward"] = np.arange(25)
    replay.insert(rows)
    column = layout.columns()["reward"]
    assert sorted(replay.data[:, column].ravel().tolist()) == list(range(15, 25))


def test_a_batch_holds_stored_rows_and_nothing_else() -> None:
    layout = transition_layout(SPEC)
    replay = Replay(layout, 100, CPU)
    rows = np.zeros(7, layout.dtype)
    as_matrix(rows)[:] = np.random.default_rng(0).normal(size=(7, layout.width))
    replay.insert(rows)
    uniform = torch.tensor([0.0, 0.5, 0.999999999, 1.0 - 2**-24])
    batch = gather(replay.data, replay.window, uniform, layout.columns())
    for i, index in enumerate([0, 3, 6, 6]):
        np.testing.assert_array_equal(batch.obs[i], rows["obs"][index])
        np.testing.assert_array_equal(batch.next_obs[i], rows["next_obs"][index])
        assert batch.reward[i] == rows["reward"][index]


def test_columns_are_the_fields_of_the_record() -> None:
    layout = transition_layout(SPEC)
    rows = np.zeros(3, layout.dtype)
    rows["obs"], rows["action"], rows["next_obs"] = 1.0, 2.0, 3.0
    matrix = as_matrix(rows)
    assert matrix.shape == (3, layout.width)
    assert layout.row_bytes == layout.dtype.itemsize
    for name, value in (("obs", 1.0), ("action", 2.0), ("next_obs", 3.0)):
        assert (matrix[:, layout.columns()[name]] == value).all()
    ends = [(c.start, c.stop) for c in layout.columns().values()]
    assert all(a[1] == b[0] for a, b in pairwise(ends))


DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]


@pytest.mark.parametrize("device", DEVICES)
def test_the_fastest_way_gives_the_numbers_of_the_plain_one(device: str) -> None:
    algorithm = build(CONFIG, SPEC)
    replay = Replay(transition_layout(SPEC), 1000, torch.device(device))
    rows = np.zeros(1000, transition_layout(SPEC).dtype)
    as_matrix(rows)[:] = np.random.default_rng(0).normal(size=(1000, transition_layout(SPEC).width))
    rows["discount"] = 0.99
    replay.insert(rows)
    plain, fast = (
        Updater(
            algorithm,
            replay,
            init_state(algorithm, 0, replay.device),
            64,
            (1e-3, 0.01),
            chunk=4,
        )
        for _ in range(2)
    )
    fast.run()  # whatever it prepares must leave no trace
    fast = Updater(
        algorithm, replay, init_state(algorithm, 0, replay.device), 64, (1e-3, 0.01), chunk=4
    )
    fast._prepared[64] = fast._prepare()
    torch.manual_seed(5)
    for _ in range(5):
        plain.updates()
    torch.manual_seed(5)
    for _ in range(5):
        fast.run()
    assert float(fast.state["updates"]) == 20
    for name, tensor in plain.state.items():
        torch.testing.assert_close(fast.state[name], tensor, rtol=1e-2, atol=1e-3)
