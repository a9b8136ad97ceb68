"""RLlib, with its new API: environments in Ray's processes, the learner in this one."""

import os

os.environ["RAY_USAGE_STATS_ENABLED"] = "0"

from pathlib import Path
from typing import Any

import numpy as np
import ray
import torch
from ray.rllib.algorithms.algorithm_config import AlgorithmConfig
from ray.rllib.core import DEFAULT_MODULE_ID
from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig
from ray.tune.registry import get_trainable_cls


def configured(request: Any) -> AlgorithmConfig:
    """RLlib's own configuration."""
    settings = request.settings
    config = get_trainable_cls(settings["algorithm"]).get_default_config()
    config.environment(request.env)
    training = dict(settings.get("training", {}))
    if isinstance(training.get("n_step"), list):
        training["n_step"] = tuple(training["n_step"])  # from two to five, say
    if "actor_lr" in training:
        training["lr"] = None  # SAC has three instead
    config.training(**training)
    if "model" in settings:
        config.rl_module(model_config=DefaultModelConfig(**settings["model"]))
    runners = settings.get("env_runners")
    if runners is not None:
        config.env_runners(num_env_runners=os.cpu_count() if runners == "cores" else runners)
    config.learners(num_gpus_per_learner=int(torch.cuda.is_available()))
    config.debugging(seed=request.seed)
    return config


def train(request: Any, saver: Any) -> None:
    """Train until killed."""
    ray.init("local", _temp_dir=f"{request.folder}/ray", include_dashboard=False)
    config = configured(request)
    algorithm = config.build_algo()
    component = f"learner/rl_module/{DEFAULT_MODULE_ID}"

    def write(path: Path) -> None:
        state = algorithm.learner_group.get_state(components=component, inference_only=True)
        torch.save(state["learner"]["rl_module"][DEFAULT_MODULE_ID], path)

    batch = config.minibatch_size or config.train_batch_size_per_learner
    saver.batch_size = batch
    while True:
        result = algorithm.train()
        if saver.due():
            learner = result.get("learners", {}).get(DEFAULT_MODULE_ID, {})
            updates = learner.get("num_module_steps_trained_lifetime", 0) // batch
            saver.save(write, result["num_env_steps_sampled_lifetime"], updates)


def load(policy: Path, env: Any, request: Any) -> Any:
    """A function from an observation to an action without noise."""
    module = configured(request).get_rl_module_spec(env=env, inference_only=True).build()
    module.set_state(torch.load(policy, map_location="cpu", weights_only=False))
    distribution = module.get_inference_action_dist_cls()

    @torch.no_grad()
    def act(obs: Any) -> Any:
        row = {"obs": torch.as_tensor(obs, dtype=torch.float32)[None]}
        inputs = module.forward_inference(row)["action_dist_inputs"]
        action = distribution.from_logits(inputs).to_deterministic().sample()[0].numpy()
        if hasattr(env.action_space, "n"):
            return int(action)
        low, high = env.action_space.low, env.action_space.high  # the policy acts from -1 to 1
        return low + (np.clip(action, -1, 1) + 1) / 2 * (high - low)

    return act
