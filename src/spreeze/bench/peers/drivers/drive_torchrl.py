"""TorchRL: its collectors, replay buffer, losses and target updates, in the loops of its SOTA implementations."""

from functools import partial
from pathlib import Path
from time import sleep
from typing import Any

import torch
from tensordict import TensorDict
from tensordict.nn import (
    InteractionType,
    NormalParamExtractor,
    TensorDictModule,
    TensorDictSequential,
    set_interaction_type,
)
from torch import nn
from torchrl.collectors import AsyncCollector, Collector
from torchrl.data import Composite, LazyTensorStorage, TensorDictReplayBuffer
from torchrl.envs import DoubleToFloat, EnvCreator, GymEnv, InitTracker, ParallelEnv, TransformedEnv
from torchrl.modules import (
    MLP,
    EGreedyModule,
    ProbabilisticActor,
    QValueActor,
    TanhNormal,
    ValueOperator,
)
from torchrl.objectives import DQNLoss, HardUpdate, SACLoss, SoftUpdate

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def environment(name: str, envs: int, seed: int | None = None) -> Any:
    """Environments in processes of their own, or a single one here."""
    env = GymEnv(name) if envs == 1 else ParallelEnv(envs, EnvCreator(partial(GymEnv, name)))
    env = TransformedEnv(env)
    env.append_transform(InitTracker())
    env.append_transform(DoubleToFloat())
    if seed is not None:
        env.set_seed(seed)
    return env


def actor_of(env: Any, settings: dict[str, Any], device: Any) -> Any:
    """The policy of SAC or DQN."""
    spec = env.action_spec_unbatched.to(device)
    hidden = settings["hidden"]
    if settings["algorithm"] == "DQN":
        network = MLP(
            out_features=spec.space.n, num_cells=hidden, activation_class=nn.ReLU, device=device
        )
        actor = QValueActor(network, spec=Composite(action=spec), in_keys=["observation"])
    else:
        network = MLP(
            out_features=2 * spec.shape[-1],
            num_cells=hidden,
            activation_class=nn.ReLU,
            device=device,
        )
        extract = NormalParamExtractor(scale_mapping="biased_softplus_1.0", scale_lb=0.1)
        module = TensorDictModule(
            nn.Sequential(network, extract.to(device)), ["observation"], ["loc", "scale"]
        )
        actor = ProbabilisticActor(
            module,
            in_keys=["loc", "scale"],
            spec=spec,
            distribution_class=TanhNormal,
            distribution_kwargs={
                "low": spec.space.low,
                "high": spec.space.high,
                "tanh_loc": False,
            },
            default_interaction_type=InteractionType.RANDOM,
        )
    with torch.no_grad():
        actor(env.fake_tensordict().to(device))  # its layers get their sizes
    return actor


def train(request: Any, saver: Any) -> None:
    """Train for `steps` or until killed."""
    torch.manual_seed(request.seed)
    settings = request.settings
    learner = {"SAC": Sac, "DQN": Dqn}[settings["algorithm"]](request)
    saver.batch_size = settings["batch_size"]
    if settings.get("asynchronous"):
        train_asynchronously(request, saver, learner)
        return
    buffer = replay(settings, shared=False)
    env = environment(request.env, settings["envs"], request.seed)
    collector = Collector(
        env,
        learner.explore,
        init_random_frames=settings["random_frames"],
        frames_per_batch=settings["frames_per_batch"],
        total_frames=settings["steps"],
        device=DEVICE,
    )
    collector.set_seed(request.seed)
    frames = updates = 0
    for rows in collector:
        collector.update_policy_weights_()
        buffer.extend(rows.reshape(-1))
        frames += rows.numel()
        learner.collected(rows.numel())
        if frames >= settings["random_frames"]:
            for _ in range(settings["updates_per_batch"]):
                learner.update(buffer.sample())
                updates += 1
                if saver.due():
                    saver.save(learner.write, frames, updates)
        if saver.due():
            saver.save(learner.write, frames, updates)


def train_asynchronously(request: Any, saver: Any, learner: Any) -> None:
    """A process collects while this one updates, as often as it can."""
    settings = request.settings
    buffer = replay(settings, shared=True)
    made = partial(environment, request.env, settings["envs"], request.seed)
    first = made()
    buffer.extend(first.rollout(1).reshape(-1))  # the storage is allocated before it is shared
    buffer.empty()
    first.close()
    collector = AsyncCollector(
        made,
        learner.explore,
        init_random_frames=0,
        frames_per_batch=settings["frames_per_batch"],
        total_frames=-1,
        device=DEVICE,
        env_device=torch.device("cpu"),
        replay_buffer=buffer,
        extend_buffer=True,
        postproc=flat,
    )
    collector.set_seed(request.seed)
    collector.start()
    while buffer.write_count <= settings["random_frames"]:
        sleep(0.01)
    weights = TensorDict.from_module(learner.actor).data
    for update in range(settings["steps"]):
        if update % settings["weights_every"] == 0:
            collector.update_policy_weights_(weights)
        learner.update(buffer.sample())
        if saver.due():
            saver.save(learner.write, buffer.write_count, update + 1)
    collector.shutdown()


def flat(rows: Any) -> Any:
    """Rows of all environments one after another."""
    return rows.reshape(-1)


def replay(settings: dict[str, Any], shared: bool) -> Any:
    """An empty buffer."""
    return TensorDictReplayBuffer(
        storage=LazyTensorStorage(settings["buffer_size"], device=DEVICE),
        batch_size=settings["batch_size"],
        prefetch=None if shared else settings.get("prefetch"),
        shared=shared,
    )


class Learner:
    """A policy and its loss."""

    def __init__(self, request: Any) -> None:
        """New networks."""
        self.settings = request.settings
        self.env = environment(request.env, 1)
        self.actor = self.explore = actor_of(self.env, self.settings, DEVICE)

    def write(self, path: Path) -> None:
        """Save the policy."""
        torch.save(self.actor.state_dict(), path)

    def collected(self, frames: int) -> None:
        """So many steps more."""

    def update(self, rows: Any) -> None:
        """Lower the losses, then move the targets."""
        losses = self.loss(rows)
        sum(value for name, value in losses.items() if name.startswith("loss")).backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.targets.step()


class Sac(Learner):
    """For Box actions."""

    def __init__(self, request: Any) -> None:
        """New networks."""
        super().__init__(request)
        network = MLP(
            out_features=1,
            num_cells=self.settings["hidden"],
            activation_class=nn.ReLU,
            device=DEVICE,
        )
        critic = ValueOperator(network, in_keys=["action", "observation"])
        with torch.no_grad():
            critic(self.env.fake_tensordict().to(DEVICE))
        self.loss = SACLoss(
            self.actor, critic, num_qvalue_nets=2, loss_function="l2", delay_actor=False,
            delay_qvalue=True, alpha_init=1.0,
        )  # fmt: skip
        self.loss.make_value_estimator(gamma=self.settings["gamma"])
        self.targets = SoftUpdate(self.loss, eps=self.settings["polyak"])
        self.optimizer = torch.optim.Adam(self.loss.parameters(), lr=self.settings["lr"])


class Dqn(Learner):
    """For discrete actions."""

    def __init__(self, request: Any) -> None:
        """New networks."""
        super().__init__(request)
        first, last = self.settings["epsilon"]
        self.greedy = EGreedyModule(
            annealing_num_steps=self.settings["epsilon_frames"],
            eps_init=first,
            eps_end=last,
            spec=self.actor.spec,
            device=DEVICE,
        )
        self.explore = TensorDictSequential(self.actor, self.greedy)
        self.loss = DQNLoss(self.actor, loss_function="l2", delay_value=True)
        self.loss.make_value_estimator(gamma=self.settings["gamma"])
        self.targets = HardUpdate(
            self.loss, value_network_update_interval=self.settings["targets_every"]
        )
        self.optimizer = torch.optim.Adam(self.loss.parameters(), lr=self.settings["lr"])

    def collected(self, frames: int) -> None:
        """So many steps more: explore less."""
        self.greedy.step(frames)


def load(policy: Path, env: Any, request: Any) -> Any:
    """A function from an observation to an action without noise."""
    wrapped = environment(request.env, 1)
    actor = actor_of(wrapped, request.settings, torch.device("cpu"))
    actor.load_state_dict(torch.load(policy, map_location="cpu"))

    @torch.no_grad()
    def act(obs: Any) -> Any:
        rows = TensorDict({"observation": torch.as_tensor(obs, dtype=torch.float32)})
        with set_interaction_type(InteractionType.DETERMINISTIC):
            action = actor(rows)["action"]
        return int(action.argmax()) if request.settings["algorithm"] == "DQN" else action.numpy()

    return act
