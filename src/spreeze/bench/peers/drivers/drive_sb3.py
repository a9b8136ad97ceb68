"""Stable-Baselines3."""

from pathlib import Path
from typing import Any

PACKAGE = "stable_baselines3"


def schedule(value: Any) -> Any:
    """The zoo's `lin_0.001`: from this value to zero over the run."""
    if isinstance(value, str) and value.startswith("lin_"):
        first = float(value.removeprefix("lin_"))
        return lambda left: left * first
    return value


def train(request: Any, saver: Any, package: str = PACKAGE) -> None:
    """Train for `steps` or until killed. `normalize` wraps the environments as the zoo does."""
    from importlib import import_module

    from stable_baselines3.common.env_util import make_vec_env
    from stable_baselines3.common.vec_env import VecNormalize

    settings = dict(request.settings)
    algorithm = getattr(import_module(package), settings.pop("algorithm"))
    num, steps = settings.pop("envs", 1), int(settings.pop("steps"))
    env = make_vec_env(request.env, num, seed=request.seed)
    if settings.pop("normalize", False):
        env = VecNormalize(env, gamma=settings.get("gamma", 0.99))
    network = settings.pop("network", None)
    if network is not None:
        settings["policy_kwargs"] = _network(network)
    settings = {name: schedule(value) for name, value in settings.items()}
    model = algorithm("MlpPolicy", env, seed=request.seed, **settings)
    saver.batch_size = model.batch_size
    # PPO counts how often it has gone through a rollout.
    per_count = -(-model.n_steps * num // model.batch_size) if hasattr(model, "n_epochs") else 1

    def after_step(_locals: dict[str, Any], _globals: dict[str, Any]) -> bool:
        if saver.due():

            def write(draft: Path) -> None:
                draft.mkdir()
                model.save(draft / "model", exclude=["replay_buffer"])
                if isinstance(env, VecNormalize):
                    env.save(str(draft / "normalize"))

            saver.save(write, model.num_timesteps, model._n_updates * per_count)
        return True

    model.learn(steps, callback=after_step)  # the published number: schedules run over it


def _network(network: dict[str, Any]) -> dict[str, Any]:
    """The zoo's policy_kwargs; an activation is given by its name in torch."""
    import torch

    known = dict(network)
    if "activation_fn" in known:
        known["activation_fn"] = getattr(torch.nn, known["activation_fn"])
    return known


def load(policy: Path, env: Any, request: Any, package: str = PACKAGE) -> Any:
    """A function from an observation to an action without noise."""
    from importlib import import_module

    from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize

    model = getattr(import_module(package), request.settings["algorithm"]).load(policy / "model")
    normalize = None
    if (policy / "normalize").exists():
        normalize = VecNormalize.load(str(policy / "normalize"), DummyVecEnv([lambda: env]))

    def act(obs: Any) -> Any:
        if normalize is not None:
            obs = normalize.normalize_obs(obs)
        return model.predict(obs, deterministic=True)[0]

    return act
