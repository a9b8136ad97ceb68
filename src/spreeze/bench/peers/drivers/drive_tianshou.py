"""Tianshou, by its procedural interface, as in its tests and examples."""

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import torch
from tianshou.algorithm import DQN, PPO, SAC
from tianshou.algorithm.modelfree.dqn import DiscreteQLearningPolicy
from tianshou.algorithm.modelfree.reinforce import DiscreteActorPolicy
from tianshou.algorithm.modelfree.sac import AutoAlpha, SACPolicy
from tianshou.algorithm.optim import AdamOptimizerFactory
from tianshou.data import Batch, Collector, VectorReplayBuffer
from tianshou.env import DummyVectorEnv
from tianshou.trainer import OffPolicyTrainerParams, OnPolicyTrainerParams
from tianshou.utils.net.common import ActorCritic, Net
from tianshou.utils.net.continuous import ContinuousActorProbabilistic, ContinuousCritic
from tianshou.utils.net.discrete import DiscreteActor, DiscreteCritic

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
PER_EPOCH = 10_000
"""Steps between two reports. Nothing is judged here."""


def train(request: Any, saver: Any) -> None:
    """Train for `steps` or until killed."""
    np.random.seed(request.seed)
    torch.manual_seed(request.seed)
    settings = dict(request.settings)
    envs, steps = settings.pop("envs"), settings.pop("steps")
    buffer_size, random = settings.pop("buffer_size"), settings.pop("random_steps", 0)
    trainer = settings.pop("trainer")
    decay = settings.pop("epsilon_decay", 0.0)
    vector = DummyVectorEnv([lambda: gymnasium.make(request.env) for _ in range(envs)])
    vector.seed(request.seed)
    algorithm = made(gymnasium.make(request.env), **settings)
    on_policy = isinstance(algorithm, PPO)
    saver.batch_size = trainer["batch_size"]
    buffer = VectorReplayBuffer(buffer_size, envs)
    collector = Collector(algorithm, vector, buffer, exploration_noise=not on_policy)
    if random:
        collector.reset()
        collector.collect(n_step=random, random=True)

    def before_collecting(_epoch: int, env_steps: int) -> None:
        if decay:
            first, last = settings["epsilon"]
            algorithm.policy.set_eps_training(max(first * (1 - decay) ** env_steps, last))
        if saver.due():
            state = algorithm.policy.state_dict()
            updates = trained_updates(env_steps, trainer)
            saver.save(lambda path: torch.save(state, path), env_steps + random, updates)

    params = OnPolicyTrainerParams if on_policy else OffPolicyTrainerParams
    algorithm.run_training(
        params(
            training_collector=collector,
            test_collector=None,
            test_in_training=False,
            max_epochs=-(-steps // PER_EPOCH),
            epoch_num_steps=PER_EPOCH,
            training_fn=before_collecting,
            show_progress=False,
            **trainer,
        )
    )


def trained_updates(env_steps: int, trainer: dict[str, Any]) -> int:
    """How many updates so many steps have led to."""
    if "update_step_num_repetitions" in trainer:
        return env_steps * trainer["update_step_num_repetitions"] // trainer["batch_size"]
    return int(env_steps * trainer["update_step_num_gradient_steps_per_sample"])


def load(policy: Path, env: Any, request: Any) -> Any:
    """A function from an observation to an action without noise."""
    names = ("algorithm", "hidden", "conditioned_sigma", "dueling")
    known = {name: value for name, value in request.settings.items() if name in names}
    loaded = made(env, **known).policy
    loaded.load_state_dict(torch.load(policy, map_location=DEVICE))
    loaded.eval()  # the mean of the distribution, or the best action

    @torch.no_grad()
    def act(obs: Any) -> Any:
        chosen = loaded(Batch(obs=np.asarray(obs)[None], info={})).act
        return loaded.map_action(np.asarray(torch.as_tensor(chosen).cpu()))[0]

    return act


def made(env: Any, algorithm: str, **settings: Any) -> Any:
    """An algorithm with its networks."""
    return {"SAC": sac, "PPO": ppo, "DQN": dqn}[algorithm](env, **settings)


def adam(rate: float) -> Any:
    """An optimizer."""
    return AdamOptimizerFactory(lr=rate)


def sac(
    env: Any,
    hidden: list[int],
    lr: float = 1e-3,
    alpha: float | None = None,
    conditioned_sigma: bool = False,
    **options: Any,
) -> Any:
    """For Box actions. Without `alpha` it is learned."""
    obs, action = env.observation_space.shape, env.action_space.shape
    actor = ContinuousActorProbabilistic(
        preprocess_net=Net(state_shape=obs, hidden_sizes=hidden),
        action_shape=action,
        unbounded=True,
        conditioned_sigma=conditioned_sigma,
    ).to(DEVICE)
    first, second = (
        ContinuousCritic(
            preprocess_net=Net(
                state_shape=obs, action_shape=action, hidden_sizes=hidden, concat=True
            )
        ).to(DEVICE)
        for _ in range(2)
    )
    return SAC(
        policy=SACPolicy(actor=actor, action_space=env.action_space),
        policy_optim=adam(lr),
        critic=first,
        critic_optim=adam(lr),
        critic2=second,
        critic2_optim=adam(lr),
        alpha=alpha if alpha is not None else AutoAlpha(-float(np.prod(action)), 0.0, adam(3e-4)),
        **options,
    )


def ppo(env: Any, hidden: list[int], lr: float = 3e-4, **options: Any) -> Any:
    """For discrete actions. Actor and critic share their layers."""
    net = Net(state_shape=env.observation_space.shape, hidden_sizes=hidden)
    actor = DiscreteActor(preprocess_net=net, action_shape=env.action_space.n).to(DEVICE)
    critic = DiscreteCritic(preprocess_net=net).to(DEVICE)
    for layer in ActorCritic(actor, critic).modules():
        if isinstance(layer, torch.nn.Linear):
            torch.nn.init.orthogonal_(layer.weight)
            torch.nn.init.zeros_(layer.bias)
    policy = DiscreteActorPolicy(
        actor=actor,
        dist_fn=torch.distributions.Categorical,
        action_space=env.action_space,
        deterministic_eval=True,
    )
    return PPO(policy=policy, critic=critic, optim=adam(lr), **options)


def dqn(
    env: Any,
    hidden: list[int],
    dueling: list[int],
    epsilon: tuple[float, float] = (0.0, 0.0),
    lr: float = 1e-3,
    **options: Any,
) -> Any:
    """For discrete actions."""
    net = Net(
        state_shape=env.observation_space.shape,
        action_shape=env.action_space.n,
        hidden_sizes=hidden,
        dueling_param=({"hidden_sizes": dueling}, {"hidden_sizes": dueling}),
    ).to(DEVICE)
    policy = DiscreteQLearningPolicy(
        model=net, action_space=env.action_space, eps_training=epsilon[0], eps_inference=0.0
    )
    return DQN(policy=policy, optim=adam(lr), **options)
