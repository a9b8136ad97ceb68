"""What holds for every algorithm of the registry: the contract that `learning` and the roles rely on."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch

import cases
from spreeze.algos import ALGORITHMS, find_algorithm
from spreeze.algos.base import Algorithm
from spreeze.errors import UsageError
from spreeze.learning.minibatch import draw_by_priority
from spreeze.learning.replay import Replay
from spreeze.learning.running_statistics import (
    init_statistics,
    normalise_batch,
    policy_statistics,
    update_statistics,
)
from spreeze.learning.state import TrainingState, init_state, policy_vector
from spreeze.learning.update import update
from spreeze.learning.updater import Updater, UpdateSetup
from spreeze.networks import Shapes, Style, atoms, mlp, project
from spreeze.policy import Policy
from spreeze.rows import Batch

CPU = torch.device("cpu")
every = pytest.mark.parametrize(("name", "kind"), cases.CASES)
RATES = (torch.tensor(1e-3), torch.tensor(0.01))


def noise_for(algorithm: Algorithm, rows: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    size = algorithm.config.row_format().segment * algorithm.spec.action_size
    return torch.randn(2, rows, size, generator=generator)


def once(
    algorithm: Algorithm, state: TrainingState, batch: Batch
) -> tuple[TrainingState, dict[str, Any]]:
    with torch.no_grad():
        return update(algorithm, state, batch, noise_for(algorithm, len(batch.obs)), *RATES)


@every
def test_losses_are_finite_and_train_only_their_own_network(name: str, kind: str) -> None:
    algorithm = cases.built(name, kind)
    state = init_state(algorithm, 0, CPU)
    batch, noise = cases.random_batch(algorithm, 16), noise_for(algorithm, 16)[0]
    actor, critic = state.get("actor", state["critic"]), state["critic"]
    leaves = [x.clone().requires_grad_() for x in (critic, state["target"], actor)]
    loss, metrics = algorithm.critic_loss(*leaves, batch, noise)
    grads = torch.autograd.grad(loss, leaves, allow_unused=True)
    assert torch.isfinite(loss)
    assert all(torch.isfinite(value) for value in metrics.values())
    assert grads[0] is not None
    assert grads[0].any()
    for grad in grads[1:]:
        assert grad is None or not grad.any(), "the critic's loss trains neither target nor actor"
    if algorithm.actor_loss is None:
        return
    leaves = [x.clone().requires_grad_() for x in (actor, critic)]
    loss, metrics = algorithm.actor_loss(*leaves, batch, noise)
    assert torch.isfinite(loss)
    assert all(torch.isfinite(value) for value in metrics.values())
    grad = torch.autograd.grad(loss, leaves, allow_unused=True)[0]
    assert grad.any()


@every
def test_actor_and_critic_updates_leave_each_other_alone(name: str, kind: str) -> None:
    """`update` takes the gradient of each loss with respect to its own network only."""
    algorithm = cases.built(name, kind)
    state = init_state(algorithm, 0, CPU)
    batch = cases.random_batch(algorithm, 16)
    after, _ = once(algorithm, state, batch)
    assert not torch.equal(after["critic"], state["critic"])
    if algorithm.actor_loss is None:
        return
    assert not torch.equal(after["actor"], state["actor"])

    def nothing(param: torch.Tensor, *_: Any) -> tuple[torch.Tensor, dict[str, Any]]:
        return 0 * param.sum(), {}

    still_actor = dataclasses.replace(algorithm, actor_loss=nothing)
    still_critic = dataclasses.replace(algorithm, critic_loss=nothing)
    assert torch.equal(once(still_actor, state, batch)[0]["actor"], state["actor"])
    assert torch.equal(once(still_actor, state, batch)[0]["critic"], after["critic"])
    assert torch.equal(once(still_critic, state, batch)[0]["critic"], state["critic"])


@every
def test_an_update_is_pure_and_repeats(name: str, kind: str) -> None:
    algorithm = cases.built(name, kind)
    state = init_state(algorithm, 0, CPU)
    before = {key: tensor.clone() for key, tensor in state.items()}
    batch = cases.random_batch(algorithm, 16)
    (first, _), (second, _) = once(algorithm, state, batch), once(algorithm, state, batch)
    assert list(first) == list(state), "names and their order are kept"
    assert all(torch.equal(state[key], before[key]) for key in state)
    assert all(torch.equal(first[key], second[key]) for key in state)
    assert all(first[key].shape == state[key].shape for key in state)
    again = init_state(algorithm, 0, CPU)
    assert all(torch.equal(again[key], state[key]) for key in state), (
        "a seed gives the same networks"
    )


@every
def test_many_updates_stay_finite(name: str, kind: str) -> None:
    algorithm = cases.built(name, kind)
    state = init_state(algorithm, 0, CPU)
    for i in range(30):
        state, metrics = once(algorithm, state, cases.random_batch(algorithm, 16, seed=i))
    assert all(torch.isfinite(tensor).all() for tensor in state.values())
    assert all(torch.isfinite(value) for value in metrics.values())
    assert float(state["updates"]) == 30 * algorithm.config.critic_updates()


@every
def test_any_number_is_accepted_as_an_action(name: str, kind: str) -> None:
    """Inductor autotunes on random data, and a bad index would kill the CUDA context."""
    algorithm = cases.built(name, kind)
    batch = cases.random_batch(algorithm, 16)
    wild = batch._replace(action=7 * torch.randn(batch.action.shape))
    state, _ = once(algorithm, init_state(algorithm, 0, CPU), wild)
    assert all(torch.isfinite(tensor).all() for tensor in state.values())


@every
def test_only_a_termination_cuts_the_future_off(name: str, kind: str) -> None:
    """Discount 0: the next observation must not matter. Discount above 0, as after a truncation: it must."""
    algorithm = cases.built(name, kind, **({"segment": 2} if name == "ppo" else {}))
    state = init_state(algorithm, 0, CPU)
    batch, noise = cases.random_batch(algorithm, 16), noise_for(algorithm, 16)[0]
    other = batch._replace(next_obs=batch.next_obs + 5)

    def loss(given: Batch, discount: float) -> float:
        given = given._replace(discount=torch.full_like(given.discount, discount))
        if len(given.ended):
            given = given._replace(ended=torch.ones_like(given.ended))
        actor = state.get("actor", state["critic"])
        with torch.no_grad():
            return float(
                algorithm.critic_loss(state["critic"], state["target"], actor, given, noise)[0]
            )

    assert loss(batch, 0.0) == pytest.approx(loss(other, 0.0), rel=1e-5)
    assert loss(batch, 0.9) != pytest.approx(loss(other, 0.9), rel=1e-5)


def torch_action(algorithm: Algorithm, state: TrainingState, obs: torch.Tensor) -> torch.Tensor:
    """What the torch network does without noise, on observations as they are."""
    form = algorithm.config.policy_form(algorithm.spec)
    sizes = form.sizes(algorithm.spec)
    items = [(k, v) for k, v in form.shapes(algorithm.spec).items() if k[0] in "wb"]
    shapes = Shapes(tuple(items))
    if form.normalised:
        empty = torch.zeros(len(obs))
        batch = Batch(obs, empty, empty, empty, obs, empty, empty, empty, empty, empty)
        obs = normalise_batch(state["stats"], batch, True, False).obs
    source = state["critic" if algorithm.actor_loss is None else "actor"]
    head = mlp(
        shapes,
        source[: shapes.size],
        "float32",
        obs,
        style=Style(form.activation, form.layer_norm, form.residual),
    )
    assert head.shape[1] == sizes[-1]
    return {
        "tanh_gaussian": lambda: torch.tanh(head.chunk(2, -1)[0]),
        "tanh": lambda: torch.tanh(head),
        "gaussian": lambda: head,
        "categorical": lambda: head.argmax(-1, keepdim=True).float(),
        "values": lambda: head[:, 1:].argmax(-1, keepdim=True).float(),
    }[form.head]()


def trained(name: str, kind: str, **knobs: Any) -> tuple[Algorithm, TrainingState, Policy]:
    """Some updates, and the numpy policy that samplers get then."""
    algorithm = cases.built(name, kind, **knobs)
    state = init_state(algorithm, 0, CPU)
    for i in range(3):
        state, _ = once(algorithm, state, cases.random_batch(algorithm, 16, seed=i))
    policy = Policy(algorithm.spec, algorithm.config.policy_form(algorithm.spec))
    policy.vector[:] = policy_vector(algorithm, state).numpy()
    return algorithm, state, policy


@every
@pytest.mark.parametrize("normalise", [False, True])
def test_the_numpy_policy_is_the_torch_network(name: str, kind: str, normalise: bool) -> None:
    algorithm, state, policy = trained(name, kind, normalise_obs=normalise, layer_norm=True)
    obs = np.random.default_rng(5).normal(2, 3, (50, 4)).astype(np.float32)
    expected = torch_action(algorithm, state, torch.from_numpy(obs)).numpy()
    np.testing.assert_allclose(policy.act(obs, explore=False), expected, atol=2e-5)


@every
@pytest.mark.parametrize("activation", ["tanh", "elu", "silu", "gelu"])
def test_the_numpy_policy_has_the_layers_of_the_torch_network(
    name: str, kind: str, activation: str
) -> None:
    """Layers of other sizes than the critic's, too."""
    sizes = {"actor_hidden": (24, 24), "actor_layer_norm": True} if name != "dqn" else {}
    knobs = {"critic_hidden": (16, 16, 16), "activation": activation, "residual": True, **sizes}
    algorithm, state, policy = trained(name, kind, **knobs)
    critic = [shape[-1] for part, shape in algorithm.critic_shapes.items if part.startswith("w")]
    assert critic[:-1] == [16, 16, 16]
    assert policy.form.hidden == ((24, 24) if name != "dqn" else (16, 16, 16))
    obs = np.random.default_rng(5).normal(0, 2, (50, 4)).astype(np.float32)
    expected = torch_action(algorithm, state, torch.from_numpy(obs)).numpy()
    np.testing.assert_allclose(policy.act(obs, explore=False), expected, atol=2e-5)


@every
def test_actions_are_in_bounds_with_and_without_noise(name: str, kind: str) -> None:
    algorithm, _, policy = trained(name, kind)
    policy.seed(0)
    scales = algorithm.config.exploration(200)
    obs = np.random.default_rng(0).normal(0, 10, (200, 4)).astype(np.float32)
    still, _ = policy.predict(obs, deterministic=True)
    if scales is not None:
        policy.set_exploration_scales(3 * scales)
    actions = [policy.to_env_action(policy.act(obs, explore=True)) for _ in range(3)]
    for action in (still, *actions, policy.to_env_action(policy.act_randomly(200))):
        if kind == "Discrete":
            assert set(np.unique(action)) <= {0, 1, 2}
        else:
            assert action.shape == (200, 2)
            assert np.abs(action).max() <= 1
    assert not np.array_equal(actions[0], actions[1]), "exploration is random"


@every
def test_log_probabilities_are_those_of_the_actions(name: str, kind: str) -> None:
    """The stored log-probability equals the one in the loss, for the same weights."""
    algorithm, state, policy = trained(name, kind, normalise_obs=False)
    steps = algorithm.config.row_format().segment
    if not policy.has_log_prob:
        assert steps == 1, "segments need it"
        return
    obs = np.random.default_rng(0).normal(size=(16 * steps, 4)).astype(np.float32)
    action = policy.act(obs, explore=True)
    batch = cases.random_batch(algorithm, 16)._replace(
        obs=torch.from_numpy(obs).view(16, steps, 4),
        action=torch.from_numpy(action.copy()).view(16, steps, -1),
        log_prob=torch.from_numpy(policy.log_prob.astype(np.float32)).view(16, steps),
    )
    assert algorithm.actor_loss is not None
    _, metrics = algorithm.actor_loss(state["actor"], state["critic"], batch, torch.zeros(0))
    assert metrics["clip_fraction"] == 0, "today's policy: every ratio is one"


@every
def test_the_config_says_whether_there_is_an_actor(name: str, kind: str) -> None:
    algorithm = cases.built(name, kind)
    assert algorithm.config.has_actor == (algorithm.actor_loss is not None)
    assert algorithm.config.has_actor == bool(algorithm.actor_shapes.items)


@every
def test_exploration_differs_between_environments(name: str, kind: str) -> None:
    scales = cases.built(name, kind).config.exploration(64)
    if scales is not None:
        assert len(scales) == 64
        assert scales.min() >= 0
        assert scales.max() / max(scales.min(), 1e-9) > 2, "from little to much"
        (alone,) = cases.built(name, kind).config.exploration(1)
        assert scales.min() < alone < scales.max(), "neither the least nor the most"


def test_an_algorithm_supports_the_action_spaces_it_states() -> None:
    for name, entry in ALGORITHMS.items():
        assert entry.takes(cases.BOX) == ("Box" in entry.actions), name
        assert entry.takes(cases.DISCRETE) == ("Discrete" in entry.actions), name
    with pytest.raises(UsageError, match=r"Did you mean td3\?"):
        find_algorithm("TD33")
    with pytest.raises(UsageError, match="there is no such file"):
        find_algorithm("nowhere.py:ENTRY")


class TestCategorical:
    """Projection of return distributions onto atoms."""

    support = atoms(11, 5.0, torch.zeros(1))

    def test_mass_and_mean_are_preserved(self) -> None:
        probs = torch.rand(7, 11).softmax(-1)
        values = torch.rand(7, 11) * 9.8 - 4.9
        out = project(probs, values, self.support)
        torch.testing.assert_close(out.sum(1), torch.ones(7))
        torch.testing.assert_close((out * self.support).sum(1), (probs * values).sum(1))

    def test_values_on_atoms_and_beyond_the_ends_lose_nothing(self) -> None:
        values = torch.tensor([[-9.0, -5.0, 0.0, 5.0, 7.0]])
        out = project(torch.full((1, 5), 0.2), values, self.support)
        expected = torch.zeros(1, 11)
        expected[0, [0, 5, 10]] = torch.tensor([0.4, 0.2, 0.4])
        torch.testing.assert_close(out, expected)

    def test_nan_is_not_an_index_out_of_bounds(self) -> None:
        """A GPU does not recover from an index out of bounds."""
        values = torch.full((1, 5), float("nan"))
        assert project(torch.full((1, 5), 0.2), values, self.support).shape == (1, 11)


class TestScaling:
    """Running statistics of observations and returns."""

    def batch(self, obs: torch.Tensor, past: torch.Tensor) -> Batch:
        none = torch.zeros(len(obs))
        return Batch(obs, none, none + 1, none, obs, none, none, past, none + 1, none)

    def test_many_batches_give_the_statistics_of_all_rows(self) -> None:
        rows = torch.randn(640, 3, generator=torch.Generator().manual_seed(0)) * 4 + 2
        stats = init_statistics(3)
        for part in rows.chunk(10):
            stats = update_statistics(stats, self.batch(part, part[:, 0]), 1e8)
        mean, scale = policy_statistics(stats).chunk(2)
        torch.testing.assert_close(mean, rows.mean(0), rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(1 / scale, rows.std(0, correction=0), rtol=1e-4, atol=1e-4)
        after = normalise_batch(stats, self.batch(rows, rows[:, 0]), True, True)
        torch.testing.assert_close(after.obs.mean(0), torch.zeros(3), rtol=0, atol=1e-4)
        spread = max(float(rows[:, 0].std(correction=0)), float(rows[:, 0].abs().max()) / 5)
        torch.testing.assert_close(after.reward, torch.full((640,), 1 / spread))

    def test_statistics_of_a_replay_forget_slowly(self) -> None:
        """A GPU learns from a thousand batches in a quarter of a second: no network could keep up."""
        memory = cases.built("fastsac", "Box").config.statistics_rows
        batch = self.batch(torch.ones(1024, 1), torch.full((1024,), 7.0))
        stats = init_statistics(1)
        stats[0] = 10_000 * 1024
        for _ in range(1000):
            stats = update_statistics(stats, batch, memory)
        mean, scale = policy_statistics(stats)
        assert float(mean) == pytest.approx(1 / 11, rel=0.01)
        assert float(scale) == pytest.approx(1, rel=0.1)
        assert float(normalise_batch(stats, batch, True, True).reward[0]) == pytest.approx(
            1 / 2.24, rel=0.1
        )

    def test_old_statistics_are_forgotten(self) -> None:
        batch = self.batch(torch.ones(1000, 1), torch.zeros(1000))
        stats = init_statistics(1)
        stats[0] = 1e9
        for _ in range(50):
            stats = update_statistics(stats, batch, 10_000)
        assert float(policy_statistics(stats)[0]) > 0.98

    def test_statistics_cover_all_of_a_large_batch(self) -> None:
        """Segments too, whose steps are alike."""
        segments = torch.arange(400.0)[:, None, None].expand(400, 16, 1)
        stats = update_statistics(init_statistics(1), self.batch(segments, segments[..., 0]), 1e8)
        mean, scale = policy_statistics(stats)
        assert float(mean) == pytest.approx(199.5, rel=0.01)
        assert float(1 / scale) == pytest.approx(400 / 12**0.5, rel=0.01)
        steps = torch.arange(16.0)[None, :, None].expand(1024, 16, 1)
        stats = update_statistics(init_statistics(1), self.batch(steps, steps[..., 0]), 1e8)
        assert float(policy_statistics(stats)[0]) == pytest.approx(7.5, rel=0.01)

    @pytest.mark.parametrize("huge", [3.4e38, -1e20])
    def test_one_huge_number_does_not_end_them(self, huge: float) -> None:
        stats, usual = init_statistics(1), torch.randn(512, 1)
        once = usual.clone()
        once[0] = huge
        for obs in (once, usual, usual):
            stats = update_statistics(stats, self.batch(obs, obs[:, 0]), 1e8)
        batch = normalise_batch(stats, self.batch(once, usual[:, 0]), obs=True, reward=True)
        assert all(x.isfinite().all() for x in (stats, batch.obs, batch.reward))

    def test_constant_observations_are_harmless(self) -> None:
        flat = torch.ones(32, 2)
        stats = update_statistics(init_statistics(2), self.batch(flat, torch.zeros(32)), 1e8)
        after = normalise_batch(stats, self.batch(flat + 5, torch.zeros(32)), True, True)
        assert torch.isfinite(after.obs).all()
        assert after.obs.abs().max() <= 10
        assert torch.isfinite(after.reward).all()


def test_v_trace_matches_its_definition() -> None:
    """Compared with plain loops over deltas, traces and ends of episodes."""
    algorithm = cases.built("ppo", "Discrete", segment=5)
    state = init_state(algorithm, 0, CPU)
    batch = cases.random_batch(algorithm, 6)
    with torch.no_grad():
        loss, metrics = algorithm.critic_loss(
            state["critic"], state["target"], state["actor"], batch, torch.zeros(0)
        )
    v_shapes, p_shapes = algorithm.critic_shapes, algorithm.actor_shapes

    def value(obs: torch.Tensor) -> torch.Tensor:
        return mlp(v_shapes, state["critic"], "float32", obs).squeeze(-1)

    goals = torch.zeros(6, 5)
    for b in range(6):
        v, next_v = value(batch.obs[b]), value(batch.next_obs[b])
        logits = mlp(p_shapes, state["actor"], "float32", batch.obs[b]).log_softmax(-1)
        now = logits[torch.arange(5), batch.action[b, :, 0].long()]
        rho = (now - batch.log_prob[b]).exp().clamp(max=1)
        onward = 0.0
        for t in reversed(range(5)):
            delta = rho[t] * (batch.reward[b, t] + batch.discount[b, t] * next_v[t] - v[t])
            trace = batch.discount[b, t] * 0.95 * rho[t] * (1 - batch.ended[b, t])
            onward = delta + trace * onward
            goals[b, t] = v[t] + onward
    assert metrics["value_mean"] == pytest.approx(float(goals.mean()), abs=1e-5)
    expected = 0.5 * (value(batch.obs.flatten(0, 1)).view(6, 5) - goals).square().mean()
    assert float(loss) == pytest.approx(float(expected), rel=1e-4)


def test_quantiles_are_those_of_the_return() -> None:
    """With terminal rewards of +-20, half of the quantiles go to each, apart from Huber smoothing."""
    algorithm = cases.built("tqc", "Box", num_critics=1, drop_per_critic=0, num_quantiles=10)
    state = init_state(algorithm, 0, CPU)
    rates = (torch.tensor(5e-2), torch.tensor(0.05))
    batch = cases.random_batch(algorithm, 64)
    batch = batch._replace(
        obs=torch.zeros_like(batch.obs),
        action=torch.zeros_like(batch.action),
        reward=(torch.arange(64) % 2) * 40.0 - 20,
        discount=torch.zeros(64),
    )
    for _ in range(400):
        with torch.no_grad():
            state, _ = update(algorithm, state, batch, noise_for(algorithm, 64), *rates)
    obs, action = torch.zeros(1, 4), torch.zeros(1, 2)
    found = mlp(algorithm.critic_shapes, state["critic"], "float32", obs, action).flatten()
    torch.testing.assert_close(found[:4], -20 * torch.ones(4), rtol=0, atol=2)
    torch.testing.assert_close(found[6:], 20 * torch.ones(4), rtol=0, atol=2)


def test_gradients_are_clipped_to_the_given_norm() -> None:
    state = init_state(cases.built("sac", "Box"), 0, CPU)
    lengths = []
    for limit in (None, 1e-3):
        algorithm = cases.built("sac", "Box", max_grad_norm=limit)
        after, _ = once(algorithm, state, cases.random_batch(algorithm, 16))
        lengths.append(float(after["critic_m"].norm()))  # a tenth of the first gradient
    assert lengths[0] > 1e-2
    assert lengths[1] == pytest.approx(1e-4, rel=1e-2)


@pytest.mark.parametrize("name", ["sac", "tqc", "fastsac", "ppo"])
def test_a_shift_of_the_entropy_is_another_value_of_its_knob(name: str) -> None:
    knob = "entropy" if name == "ppo" else "target_entropy_per_action"
    asked, usual = cases.built(name, "Box", **{knob: 0.3}), cases.built(name, "Box", **{knob: 0.1})
    state, batch = init_state(usual, 0, CPU), cases.random_batch(usual, 32)
    shifted = batch._replace(entropy_shift=torch.full((32,), 0.2))
    expected, _ = once(asked, state, batch)
    found, _ = once(usual, state, shifted)
    plain, _ = once(usual, state, batch)
    torch.testing.assert_close(found["actor_m"], expected["actor_m"])
    assert not torch.allclose(plain["actor_m"], expected["actor_m"], rtol=1e-4, atol=1e-6)


def test_reward_scale_multiplies_rewards() -> None:
    algorithm = cases.built("sac", "Box", reward_scale=3.0)
    plain = cases.built("sac", "Box")
    state, batch = init_state(plain, 0, CPU), cases.random_batch(plain, 16)
    scaled_by_hand = batch._replace(reward=3 * batch.reward)
    assert torch.equal(
        once(algorithm, state, batch)[0]["critic"], once(plain, state, scaled_by_hand)[0]["critic"]
    )


@pytest.mark.parametrize("name", ALGORITHMS)
def test_the_row_format_follows_the_knobs(name: str) -> None:
    """Samplers know nothing else about rows."""
    rows = (
        ALGORITHMS[name].config(gamma=0.9, termination_cost=7.0, normalise_reward=True).row_format()
    )
    assert (rows.gamma, rows.termination_cost, rows.past_return) == (0.9, 7.0, True)
    assert max(rows.segment, rows.n_step) > 1 or name not in ("ppo", "dqn")


class TestPriorities:
    """Prioritised replay."""

    def replay(self, num: int = 8) -> Replay:
        return Replay(cases.layout_of(cases.built("sac", "Box")), num, CPU, prioritised=True)

    def rows(self, num: int) -> Any:
        return cases.random_rows(cases.built("sac", "Box"), num)

    def test_rows_are_drawn_in_proportion_to_their_priority(self) -> None:
        replay = self.replay()
        replay.insert(self.rows(8))
        assert replay.priorities is not None
        replay.priorities[:] = torch.tensor([1.0, 0, 0, 2.0, 0, 0, 0, 5.0])
        uniform = (torch.arange(800) + 0.5) / 800
        index, weight = draw_by_priority(replay.priorities, replay.window[1], uniform, 1.0)
        assert torch.bincount(index, minlength=8).tolist() == [100, 0, 0, 200, 0, 0, 0, 500]
        # Fully corrected, each row has the same total weight as with uniform draws.
        totals = torch.zeros(8).index_add(0, index, weight)
        torch.testing.assert_close(totals[[3, 7]], totals[[0, 0]], rtol=1e-4, atol=1e-4)

    def test_new_rows_get_the_highest_priority(self) -> None:
        replay = self.replay(4)
        replay.insert(self.rows(3))
        assert replay.priorities is not None
        replay.priorities[1] = 9.0
        replay.insert(self.rows(1))
        assert replay.priorities.tolist() == [1, 9, 1, 9]
        replay.insert(self.rows(2))
        assert replay.priorities.tolist() == [9, 9, 1, 9], "the oldest two were overwritten"

    @pytest.mark.parametrize("name", [n for n, e in ALGORITHMS.items() if n != "ppo"])
    def test_updates_raise_the_priority_of_large_errors(self, name: str) -> None:
        (kind,) = ALGORITHMS[name].actions
        # Without normalisation, which would shrink the outlier.
        knobs = {"normalise_reward": False, "normalise_obs": False, "n_step": 1}
        algorithm = cases.built(name, kind, priority=0.6, **knobs)
        replay = Replay(cases.layout_of(algorithm), 64, CPU, prioritised=True)
        rows = cases.random_rows(algorithm, 64)
        rows["discount"], rows["reward"] = 0, 0
        rows["reward"][17] = 4.9
        replay.insert(rows)
        state = init_state(algorithm, 0, CPU)
        updater = Updater(UpdateSetup(algorithm, replay, state, 64, (1e-2, 0.01)))
        torch.manual_seed(0)
        for _ in range(60):
            updater.run()
        assert replay.priorities is not None
        assert int(replay.priorities.argmax()) == 17
        assert all(torch.isfinite(tensor).all() for tensor in updater.state.values())
        assert replay.priorities.min() > 0
