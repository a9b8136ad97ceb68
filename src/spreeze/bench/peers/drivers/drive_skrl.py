"""skrl, in PyTorch. Its users write the networks; these have the shapes of its examples."""

import math
from itertools import pairwise
from pathlib import Path
from typing import Any

import gymnasium
import torch
from skrl.agents.torch.dqn import DQN, DQN_CFG
from skrl.agents.torch.sac import SAC, SAC_CFG
from skrl.envs.wrappers.torch import wrap_env
from skrl.memories.torch import RandomMemory
from skrl.models.torch import DeterministicMixin, GaussianMixin, Model
from skrl.trainers.torch import StepTrainer
from skrl.utils import set_seed
from torch import nn


def layers(inputs: int, hidden: list[int], outputs: int) -> list[nn.Module]:
    """A network with ReLU."""
    sizes, modules = [inputs, *hidden], list[nn.Module]()
    for size, after in pairwise(sizes):
        modules += [nn.Linear(size, after), nn.ReLU()]
    return [*modules, nn.Linear(sizes[-1], outputs)]


class Actor(GaussianMixin, Model):
    """Means within the action's bounds; deviations that do not depend on the observation."""

    def __init__(self, hidden: list[int], **spaces: Any) -> None:
        """New."""
        Model.__init__(self, **spaces)
        GaussianMixin.__init__(self, clip_log_std=True, min_log_std=-20, max_log_std=2)
        network = layers(self.num_observations, hidden, self.num_actions)
        self.net = nn.Sequential(*network, nn.Tanh())
        self.log_std_parameter = nn.Parameter(torch.zeros(self.num_actions))
        self.bound = float(self.action_space.high[0])

    def compute(self, inputs: Any, role: str = "") -> Any:
        """Means, and the logarithms of the deviations."""
        means = self.bound * self.net(inputs["observations"])
        return means, {"log_std": self.log_std_parameter}


class Value(DeterministicMixin, Model):
    """A critic of an action, or the values of all discrete actions."""

    def __init__(self, hidden: list[int], of_action: bool, **spaces: Any) -> None:
        """New."""
        Model.__init__(self, **spaces)
        DeterministicMixin.__init__(self)
        self.of_action = of_action
        inputs = self.num_observations + self.num_actions * of_action
        self.net = nn.Sequential(*layers(inputs, hidden, 1 if of_action else self.num_actions))

    def compute(self, inputs: Any, role: str = "") -> Any:
        """The values."""
        known = [inputs["observations"]]
        if self.of_action:
            known.append(inputs["taken_actions"])
        return self.net(torch.cat(known, dim=1)), {}


def networks(algorithm: str, hidden: list[int], **spaces: Any) -> dict[str, Any]:
    """All that an algorithm needs. The first is the policy."""
    if algorithm == "DQN":
        names = ("q_network", "target_q_network")
        models = {name: Value(hidden, of_action=False, **spaces) for name in names}
    else:
        names = ("critic_1", "critic_2", "target_critic_1", "target_critic_2")
        models = {"policy": Actor(hidden, **spaces)}
        models |= {name: Value(hidden, of_action=True, **spaces) for name in names}
    for model in models.values():
        model.init_parameters(method_name="normal_", mean=0.0, std=0.1)
    return models


def train(request: Any, saver: Any) -> None:
    """Train for `steps` or until killed."""
    set_seed(request.seed)
    settings = dict(request.settings)
    algorithm, hidden = settings.pop("algorithm"), settings.pop("hidden")
    envs, steps, memory_size = (settings.pop(key) for key in ("envs", "steps", "memory_size"))
    made = gymnasium.make(request.env)
    if envs > 1:
        made = gymnasium.make_vec(request.env, num_envs=envs, vectorization_mode="sync")
    env = wrap_env(made)
    spaces = {
        "observation_space": env.observation_space,
        "state_space": env.state_space,
        "action_space": env.action_space,
        "device": env.device,
    }
    models = networks(algorithm, hidden, **spaces)
    agent_class, config_class = {"SAC": (SAC, SAC_CFG), "DQN": (DQN, DQN_CFG)}[algorithm]
    config = config_class(**settings)
    if algorithm == "DQN":
        config.exploration_scheduler = lambda step, last: max(math.exp(-10 * step / last), 0.05)
    config.experiment.write_interval = config.experiment.checkpoint_interval = 0
    memory = RandomMemory(
        memory_size=memory_size, num_envs=envs, device=env.device, replacement=False
    )
    agent = agent_class(models=models, memory=memory, cfg=config, **spaces)
    known = {"timesteps": steps, "headless": True, "disable_progressbar": True}
    trainer = StepTrainer(cfg=known, env=env, agents=agent)
    policy = next(iter(models.values()))
    saver.batch_size = config.batch_size
    for step in range(steps):
        env.action_space.sample()  # or skrl 2.1.1 draws the same random action each time, from a copy
        trainer.train(timestep=step, timesteps=steps)
        if saver.due():
            updates = max(0, step - config.learning_starts) * config.gradient_steps
            saver.save(
                lambda path: torch.save(policy.state_dict(), path), (step + 1) * envs, updates
            )


def load(policy: Path, env: Any, request: Any) -> Any:
    """A function from an observation to an action without noise."""
    spaces = {"observation_space": env.observation_space, "action_space": env.action_space}
    settings = request.settings
    models = networks(settings["algorithm"], settings["hidden"], device="cpu", **spaces)
    model = next(iter(models.values()))
    model.load_state_dict(torch.load(policy, map_location="cpu"))

    @torch.no_grad()
    def act(obs: Any) -> Any:
        row = torch.as_tensor(obs, dtype=torch.float32)[None]
        out = model.compute({"observations": row})[0][0]
        return out.numpy() if isinstance(model, Actor) else int(out.argmax())

    return act
