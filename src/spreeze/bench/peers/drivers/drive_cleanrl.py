"""CleanRL. It is no library but a collection of single files, so this is our own writing of two of its algorithms.

PPO and SAC as its ppo.py and sac_continuous_action.py describe them, with their networks and order of operations.
"""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gymnasium
import numpy as np
import torch
from torch import nn
from torch.nn import functional

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def train(request: Any, saver: Any) -> None:
    """Train for `steps` or until killed."""
    torch.manual_seed(request.seed)
    np.random.seed(request.seed)
    settings = SimpleNamespace(**request.settings)
    {"PPO": ppo, "SAC": sac}[settings.algorithm](request, saver, settings)


def load(policy: Path, env: Any, request: Any) -> Any:
    """A function from an observation to an action without noise."""
    actor = Actor(env) if request.settings["algorithm"] == "SAC" else categorical_actor(env)
    actor.load_state_dict(torch.load(policy, map_location="cpu"))

    @torch.no_grad()
    def act(obs: Any) -> Any:
        out = actor(torch.as_tensor(obs, dtype=torch.float32)[None])
        if isinstance(actor, Actor):
            return actor.scaled(out[0].tanh())[0].numpy()
        return int(out.argmax())

    return act


def linear(inputs: int, outputs: int, gain: float = 2**0.5) -> nn.Linear:
    """A layer of PPO: orthogonal, without bias at first."""
    layer = nn.Linear(inputs, outputs)
    nn.init.orthogonal_(layer.weight, gain)
    nn.init.zeros_(layer.bias)
    return layer


def tanh_network(inputs: int, outputs: int, gain: float) -> nn.Sequential:
    """PPO's actor or critic."""
    hidden = [linear(inputs, 64), nn.Tanh(), linear(64, 64), nn.Tanh()]
    return nn.Sequential(*hidden, linear(64, outputs, gain))


def categorical_actor(env: Any) -> nn.Sequential:
    """Observations to the logits of discrete actions."""
    return tanh_network(int(np.prod(env.observation_space.shape)), int(env.action_space.n), 0.01)


def ppo(request: Any, saver: Any, settings: Any) -> None:
    """Discrete actions. Truncated episodes count as terminated, as in the original."""
    envs, num_steps = settings.envs, settings.num_steps
    vector = gymnasium.vector.SyncVectorEnv(
        [lambda: gymnasium.make(request.env) for _ in range(envs)],
        autoreset_mode=gymnasium.vector.AutoresetMode.SAME_STEP,
    )
    single = gymnasium.make(request.env)
    actor = categorical_actor(single).to(DEVICE)
    critic = tanh_network(int(np.prod(single.observation_space.shape)), 1, 1.0).to(DEVICE)
    both = nn.ModuleList([actor, critic])
    optimizer = torch.optim.Adam(both.parameters(), lr=settings.learning_rate, eps=1e-5)
    obs, _ = vector.reset(seed=request.seed)
    now = (tensor(obs), torch.zeros(envs, device=DEVICE))
    iterations, updates = settings.steps // (envs * num_steps), 0
    saver.batch_size = envs * num_steps // settings.minibatches
    for iteration in range(iterations):
        optimizer.param_groups[0]["lr"] = settings.learning_rate * (1 - iteration / iterations)
        rollout, now = collect(vector, actor, critic, num_steps, now)
        batch = {name: torch.cat([row[name] for row in rollout]) for name in rollout[0]}
        batch["advantage"] = torch.cat(advantages(rollout, critic, now, settings))
        updates += ppo_updates(batch, both, optimizer, settings)
        if saver.due():
            steps = (iteration + 1) * envs * num_steps
            saver.save(lambda path: torch.save(actor.state_dict(), path), steps, updates)


def collect(vector: Any, actor: Any, critic: Any, num_steps: int, now: Any) -> Any:
    """Rows of one step of all environments each, and observation and end flag after the last one."""
    rollout = []
    for _ in range(num_steps):
        obs, done = now
        with torch.no_grad():
            choice = torch.distributions.Categorical(logits=actor(obs))
            action = choice.sample()
            row = {"obs": obs, "action": action, "log_prob": choice.log_prob(action)}
            row |= {"done": done, "value": critic(obs)[:, 0]}
        after, reward, terminated, truncated, _ = vector.step(action.cpu().numpy())
        rollout.append(row | {"reward": tensor(reward)})
        now = (tensor(after), tensor(terminated | truncated))
    return rollout, now


@torch.no_grad()
def advantages(rollout: Any, critic: Any, now: Any, settings: Any) -> Any:
    """Generalized advantage estimates, row by row."""
    gamma, gae_lambda = settings.gamma, settings.gae_lambda
    value, done, estimate, estimates = critic(now[0])[:, 0], now[1], 0.0, []
    for row in reversed(rollout):
        error = row["reward"] + gamma * value * (1 - done) - row["value"]
        estimate = error + gamma * gae_lambda * (1 - done) * estimate
        estimates.insert(0, estimate)
        value, done = row["value"], row["done"]
    return estimates


def ppo_updates(batch: Any, both: Any, optimizer: Any, settings: Any) -> int:
    """Clipped losses of policy and value, over shuffled minibatches. How many updates that were."""
    actor, critic = both
    epochs, minibatches, clip = settings.epochs, settings.minibatches, settings.clip
    count = len(batch["value"])
    for _ in range(epochs):
        for index in torch.randperm(count, device=DEVICE).split(count // minibatches):
            part = {name: column[index] for name, column in batch.items()}
            choice = torch.distributions.Categorical(logits=actor(part["obs"]))
            ratio = (choice.log_prob(part["action"]) - part["log_prob"]).exp()
            advantage = part["advantage"]
            target = advantage + part["value"]
            advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
            gain = torch.min(ratio * advantage, ratio.clamp(1 - clip, 1 + clip) * advantage)
            now, before = critic(part["obs"])[:, 0], part["value"]
            near = before + (now - before).clamp(-clip, clip)
            miss = torch.max((now - target) ** 2, (near - target) ** 2)
            loss = settings.value * 0.5 * miss.mean() - gain.mean()
            loss -= settings.entropy * choice.entropy().mean()
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(both.parameters(), settings.max_grad_norm)
            optimizer.step()
    return epochs * minibatches


def tensor(array: Any) -> torch.Tensor:
    """On the device that learns."""
    return torch.as_tensor(np.asarray(array), dtype=torch.float32, device=DEVICE)


def relu_network(inputs: int, outputs: int) -> nn.Sequential:
    """SAC's critic."""
    hidden = [nn.Linear(inputs, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU()]
    return nn.Sequential(*hidden, nn.Linear(256, outputs))


class Actor(nn.Module):
    """SAC's policy: a normal distribution, squashed by tanh, scaled to the actions."""

    def __init__(self, env: Any) -> None:
        """For the spaces of an environment."""
        super().__init__()
        space = env.action_space
        self.network = relu_network(
            int(np.prod(env.observation_space.shape)), 2 * int(np.prod(space.shape))
        )
        self.register_buffer("extent", torch.as_tensor((space.high - space.low) / 2))
        self.register_buffer("center", torch.as_tensor((space.high + space.low) / 2))

    def forward(self, obs: Any) -> Any:
        """Mean and logarithm of the deviation, from -5 to 2."""
        mean, log_std = self.network(obs).chunk(2, -1)
        return mean, -5 + 3.5 * (log_std.tanh() + 1)

    def scaled(self, squashed: Any) -> Any:
        """From -1 to 1 to the action's bounds."""
        return squashed * self.extent + self.center

    def sample(self, obs: Any) -> Any:
        """Actions and their log-probabilities."""
        mean, log_std = self(obs)
        normal = torch.distributions.Normal(mean, log_std.exp())
        raw = normal.rsample()
        squashed = raw.tanh()
        log_prob = normal.log_prob(raw) - torch.log(self.extent * (1 - squashed**2) + 1e-6)
        return self.scaled(squashed), log_prob.sum(-1)


class Replay:
    """Transitions, overwritten from the oldest on."""

    def __init__(self, capacity: int, env: Any) -> None:
        """Empty."""
        obs, action = env.observation_space.shape, env.action_space.shape
        shapes = {"obs": obs, "after": obs, "action": action, "reward": (), "terminated": ()}
        self._columns = {
            name: np.zeros((capacity, *shape), np.float32) for name, shape in shapes.items()
        }
        self._capacity, self._written = capacity, 0

    def add(self, **row: Any) -> None:
        """One transition."""
        for name, value in row.items():
            self._columns[name][self._written % self._capacity] = value
        self._written += 1

    def draw(self, count: int) -> dict[str, torch.Tensor]:
        """Random transitions."""
        index = np.random.randint(0, min(self._written, self._capacity), count)
        return {name: tensor(column[index]) for name, column in self._columns.items()}


def sac(request: Any, saver: Any, settings: Any) -> None:
    """One update of the critics per step; as many of the policy, but every `policy_frequency` steps."""
    env = gymnasium.make(request.env)
    env.action_space.seed(request.seed)
    learner, replay = SacLearner(env, settings), Replay(settings.buffer_size, env)
    saver.batch_size = settings.batch_size
    obs, _ = env.reset(seed=request.seed)
    for number in range(1, settings.steps + 1):
        if number <= settings.learning_starts:
            action = env.action_space.sample()
        else:
            with torch.no_grad():
                action = learner.actor.sample(tensor(obs)[None])[0][0].cpu().numpy()
        after, reward, terminated, truncated, _ = env.step(action)
        replay.add(obs=obs, after=after, action=action, reward=reward, terminated=terminated)
        obs = env.reset()[0] if terminated or truncated else after
        updates = max(0, number - settings.learning_starts)
        if updates:
            learner.update(replay.draw(settings.batch_size), number)
        if saver.due():
            saver.save(lambda path: torch.save(learner.actor.state_dict(), path), number, updates)


class SacLearner:
    """Two critics with their targets, the policy, and the weight of its entropy."""

    def __init__(self, env: Any, settings: Any) -> None:
        """New networks."""
        size = int(np.prod(env.observation_space.shape) + np.prod(env.action_space.shape))
        self.actor = Actor(env).to(DEVICE)
        self._critics, self._targets = (
            nn.ModuleList(relu_network(size, 1) for _ in range(2)).to(DEVICE) for _ in range(2)
        )
        self._targets.load_state_dict(self._critics.state_dict())
        self._log_alpha = torch.zeros(1, requires_grad=True, device=DEVICE)
        self._goal = -float(np.prod(env.action_space.shape))
        self._settings = settings
        self._of_actor = torch.optim.Adam(self.actor.parameters(), lr=settings.policy_lr)
        self._of_critics = torch.optim.Adam(self._critics.parameters(), lr=settings.q_lr)
        self._of_alpha = torch.optim.Adam([self._log_alpha], lr=settings.q_lr)

    def update(self, batch: dict[str, torch.Tensor], number: int) -> None:
        """Critics and targets, and the policy when it is its turn."""
        self._update_critics(batch)
        if number % self._settings.policy_frequency == 0:
            for _ in range(self._settings.policy_frequency):
                self._update_actor(batch["obs"])
        self._update_targets()

    def _update_critics(self, batch: dict[str, torch.Tensor]) -> None:
        """Towards the reward and the lower of the targets' values."""
        with torch.no_grad():
            action, log_prob = self.actor.sample(batch["after"])
            value = lowest(self._targets, batch["after"], action)
            value -= self._log_alpha.exp() * log_prob
            target = batch["reward"] + (1 - batch["terminated"]) * self._settings.gamma * value
        pair = torch.cat([batch["obs"], batch["action"]], -1)
        step(self._of_critics, sum(functional.mse_loss(c(pair)[:, 0], target) for c in self._critics))  # fmt: skip

    def _update_actor(self, obs: torch.Tensor) -> None:
        """Towards higher values and entropy, and the entropy's weight towards its goal."""
        alpha = self._log_alpha.exp().detach()
        action, log_prob = self.actor.sample(obs)
        step(self._of_actor, (alpha * log_prob - lowest(self._critics, obs, action)).mean())
        with torch.no_grad():
            _, log_prob = self.actor.sample(obs)
        step(self._of_alpha, (-self._log_alpha.exp() * (log_prob + self._goal)).mean())

    @torch.no_grad()
    def _update_targets(self) -> None:
        """A step towards the critics."""
        both = zip(self._targets.parameters(), self._critics.parameters(), strict=True)
        for target, critic in both:
            target.lerp_(critic, self._settings.tau)


def lowest(critics: Any, obs: torch.Tensor, action: torch.Tensor) -> torch.Tensor:
    """Of two values."""
    pair = torch.cat([obs, action], -1)
    return torch.min(critics[0](pair)[:, 0], critics[1](pair)[:, 0])


def step(optimizer: torch.optim.Optimizer, loss: Any) -> None:
    """Lower a loss."""
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
