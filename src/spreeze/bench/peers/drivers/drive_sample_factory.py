"""Sample Factory. Its learner process writes checkpoints; the newest is handed on between iterations."""

import shutil
from pathlib import Path
from typing import Any

import gymnasium
import torch
from sample_factory.algo.learning.learner import Learner
from sample_factory.algo.runners.runner import AlgoObserver
from sample_factory.algo.sampling.batched_sampling import preprocess_actions
from sample_factory.algo.utils.action_distributions import argmax_actions
from sample_factory.algo.utils.env_info import extract_env_info
from sample_factory.algo.utils.make_env import make_env_func_batched
from sample_factory.algo.utils.rl_utils import prepare_and_normalize_obs
from sample_factory.algo.utils.tensor_utils import unsqueeze_tensor
from sample_factory.cfg.arguments import parse_full_cfg, parse_sf_args
from sample_factory.envs.env_utils import register_env
from sample_factory.model.actor_critic import create_actor_critic
from sample_factory.model.model_utils import get_rnn_size
from sample_factory.train import make_runner
from sample_factory.utils.attr_dict import AttrDict


def configuration(request: Any) -> Any:
    """The settings, as defaults of its command line, which is where its examples have them."""
    register_env(request.env, made)
    parser, _ = parse_sf_args(argv := [f"--env={request.env}"])
    parser.set_defaults(
        experiment="run",
        train_dir=request.folder,
        seed=request.seed,
        device="gpu" if torch.cuda.is_available() else "cpu",
        save_every_sec=max(1, round(request.every_s)),
        keep_checkpoints=3,
        **request.settings,
    )
    return parse_full_cfg(parser, argv)


def made(name: str, cfg: Any = None, env_config: Any = None, render_mode: Any = None) -> Any:
    """An environment."""
    return gymnasium.make(name, render_mode=render_mode)


class Handing(AlgoObserver):
    """Looks for a new checkpoint after each iteration."""

    def __init__(self, saver: Any) -> None:
        """None seen."""
        self._saver, self._last = saver, ""

    def on_training_step(self, runner: Any, _iteration: int) -> None:
        """Hand the newest checkpoint on, if it is time."""
        if not self._saver.due():
            return
        files = Learner.get_checkpoints(Learner.checkpoint_dir(runner.cfg, 0))
        if files and files[-1] != self._last:
            self._last = files[-1]
            _, updates, env_steps = Path(files[-1]).stem.split("_")
            self._saver.save(
                lambda path: shutil.copy(files[-1], path), int(env_steps), int(updates)
            )


def train(request: Any, saver: Any) -> None:
    """Train until killed."""
    cfg = configuration(request)
    saver.batch_size = cfg.batch_size
    _, runner = make_runner(cfg)
    runner.register_observer(Handing(saver))
    runner.init()
    runner.run()


def load(policy: Path, env: Any, request: Any) -> Any:
    """A function from an observation to an action without noise."""
    cfg = configuration(request)
    cfg.num_envs = 1
    batched = make_env_func_batched(cfg, AttrDict(worker_index=0, vector_index=0, env_id=0))
    info = extract_env_info(batched, cfg)
    model = create_actor_critic(cfg, batched.observation_space, batched.action_space)
    model.eval()
    model.load_state_dict(Learner.load_checkpoint([str(policy)], torch.device("cpu"))["model"])
    state = torch.zeros([1, get_rnn_size(cfg)])

    @torch.no_grad()
    def act(obs: Any) -> Any:
        rows = {"obs": torch.as_tensor(obs, dtype=torch.float32)[None]}
        model(prepare_and_normalize_obs(model, rows), state)
        actions = argmax_actions(model.action_distribution())
        if actions.ndim == 1:
            actions = unsqueeze_tensor(actions, dim=-1)
        return preprocess_actions(info, actions)[0]

    return act
