"""What Stable-Baselines3, CleanRL and RLlib call our knobs, and which of their settings have no counterpart here."""

from __future__ import annotations

from collections.abc import Callable, Collection

from spreeze.text import nearest, suggest

OURS: dict[str, tuple[str, ...]] = {
    # What to train, for how long, where
    "total_timesteps": ("steps",),
    "num_timesteps": ("steps",),
    "n_timesteps": ("steps",),
    "timesteps_total": ("steps",),
    "max_steps": ("steps",),
    "stop": ("target", "time", "steps"),
    "run": ("algo",),
    "exp_name": ("name",),
    "tb_log_name": ("name",),
    "log_dir": ("runs",),
    "local_dir": ("runs",),
    "storage_path": ("runs",),
    "tensorboard_log": ("runs",),
    "cuda": ("device",),
    "gpu": ("device",),
    "num_gpus": ("device",),
    "torch_deterministic": ("serial",),
    "reset_num_timesteps": ("resume",),
    "env_kwargs": ("env.kwargs",),
    "env_config": ("env.kwargs",),
    # Sampling
    "n_envs": ("sampler.envs_per_process", "sampler.processes"),
    "num_envs": ("sampler.envs_per_process", "sampler.processes"),
    "num_envs_per_worker": ("sampler.envs_per_process",),
    "num_envs_per_env_runner": ("sampler.envs_per_process",),
    "num_workers": ("sampler.processes",),
    "num_env_runners": ("sampler.processes",),
    # Replay and updates
    "buffer_size": ("replay.capacity",),
    "replay_size": ("replay.capacity",),
    "train_batch_size": ("learner.batch_size",),
    "train_batch_size_per_learner": ("learner.batch_size",),
    "minibatch_size": ("learner.batch_size",),
    "sgd_minibatch_size": ("learner.batch_size",),
    "num_minibatches": ("learner.batch_size",),
    "learning_starts": ("learner.warmup_rows", "sampler.random_steps"),
    "num_steps_sampled_before_learning_starts": ("learner.warmup_rows",),
    "train_freq": ("learner.updates_per_step",),
    "train_frequency": ("learner.updates_per_step",),
    "gradient_steps": ("learner.updates_per_step",),
    "training_intensity": ("learner.updates_per_step",),
    "utd_ratio": ("learner.updates_per_step",),
    # Algorithms
    "learning_rate": ("algo.lr",),
    "algo.learning_rate": ("algo.lr",),
    "policy_lr": ("algo.lr",),
    "q_lr": ("algo.lr",),
    "anneal_lr": ("algo.lr_schedule",),
    "discount": ("algo.gamma",),
    "net_arch": ("algo.hidden", "algo.actor_hidden", "algo.critic_hidden"),
    "policy_kwargs": ("algo.hidden", "algo.activation"),
    "hidden_sizes": ("algo.hidden",),
    "fcnet_hiddens": ("algo.hidden",),
    "fcnet_activation": ("algo.activation",),
    "activation_fn": ("algo.activation",),
    "normalize": ("algo.normalise_obs", "algo.normalise_reward"),
    "ent_coef": ("algo.init_alpha", "algo.entropy"),
    "entropy_coeff": ("algo.entropy",),
    "alpha": ("algo.init_alpha",),
    "initial_alpha": ("algo.init_alpha",),
    "target_entropy": ("algo.target_entropy_per_action",),
    "target_update_interval": ("algo.tau",),
    "target_network_frequency": ("algo.tau",),
    "target_network_update_freq": ("algo.tau",),
    "policy_frequency": ("algo.policy_delay",),
    "policy_noise": ("algo.target_noise",),
    "target_policy_noise": ("algo.target_noise",),
    "noise_clip": ("algo.target_noise_clip",),
    "action_noise": ("algo.noise",),
    "exploration_noise": ("algo.noise",),
    "exploration_initial_eps": ("algo.epsilon",),
    "exploration_final_eps": ("algo.exploration_end",),
    "start_e": ("algo.epsilon",),
    "end_e": ("algo.exploration_end",),
    "exploration_fraction": ("algo.exploration_schedule",),
    "n_critics": ("algo.num_critics",),
    "n_quantiles": ("algo.num_quantiles", "algo.quantiles"),
    "top_quantiles_to_drop_per_net": ("algo.drop_per_critic",),
    "gae_lambda": ("algo.gae_lambda",),
    "lambda": ("algo.gae_lambda",),
    "lambda_": ("algo.gae_lambda",),
    "clip_coef": ("algo.clip",),
    "clip_param": ("algo.clip",),
    "clip_range": ("algo.clip",),
    "num_steps": ("algo.segment",),
    "n_steps": ("algo.segment",),
    "rollout_fragment_length": ("algo.segment",),
    "n_epochs": ("algo.max_reuse",),
    "num_epochs": ("algo.max_reuse",),
    "num_sgd_iter": ("algo.max_reuse",),
    "update_epochs": ("algo.max_reuse",),
    # Evaluation, checkpoints, videos
    "eval_env": ("evaluator.env",),
    "eval_env_kwargs": ("evaluator.kwargs",),
    "eval_freq": ("evaluator.every_steps",),
    "evaluation_interval": ("evaluator.every_s",),
    "evaluation_duration": ("evaluator.episodes",),
    "n_eval_episodes": ("evaluator.episodes",),
    "eval_episodes": ("evaluator.episodes",),
    "save_freq": ("checkpoint.every_s",),
    "checkpoint_freq": ("checkpoint.every_s",),
    "capture_video": ("visualizer.video_s",),
}
"""Their names, and the knobs that do the same here."""

NAMED_FIRST = "the environment is named first, without a flag: spreeze train Pendulum-v1"
NETWORKS_FOLLOW = "the networks follow from the spaces; algo.hidden sets their size"
ALWAYS_SAVED = "policies and training state are always saved, in the run's checkpoints/"
ALWAYS_LOGGED = "metrics are always recorded, about once a second"
WANDB = "wandb reads WANDB_PROJECT and WANDB_ENTITY from the environment"
ONE_REPLAY = "there is one kind of replay; algo.priority draws rows by priority"
NOT_IN_PPO = "PPO here does without it"
NO_GSDE = "gSDE is not implemented; algo.lasting_noise makes noise that lasts for several steps"

SWEEP = "a sweep is a command: spreeze sweep ENV --space FILE --trials N"

WITHOUT: dict[str, str] = {
    "env": NAMED_FIRST,
    "env_id": NAMED_FIRST,
    "env_name": NAMED_FIRST,
    "num_samples": SWEEP,
    "optimize_hyperparameters": SWEEP,
    "n_trials": SWEEP,
    "config": "settings are single knobs; `preset` names a set of them",
    "policy": NETWORKS_FOLLOW,
    "policy_class": NETWORKS_FOLLOW,
    "model": NETWORKS_FOLLOW,
    "features_extractor_class": NETWORKS_FOLLOW,
    "framework": "networks are always trained with PyTorch",
    "autotune": "SAC and TQC always learn the temperature; algo.init_alpha is where it starts",
    "save_model": ALWAYS_SAVED,
    "checkpoint_at_end": ALWAYS_SAVED,
    "upload_model": "Spreeze uploads nothing",
    "hf_entity": "Spreeze uploads nothing",
    "wandb_project_name": WANDB,
    "wandb_entity": WANDB,
    "log_interval": ALWAYS_LOGGED,
    "stats_window_size": ALWAYS_LOGGED,
    "progress_bar": "progress is always shown; in Python, quiet=True shows nothing",
    "monitor_wrapper": "returns and lengths of episodes are always recorded",
    "vec_env_cls": "environments always run in sampler processes",
    "vec_normalize": "algo.normalise_obs and algo.normalise_reward take its place",
    "optimize_memory_usage": ONE_REPLAY,
    "replay_buffer_class": ONE_REPLAY,
    "replay_buffer_kwargs": ONE_REPLAY,
    "rollout_buffer_class": ONE_REPLAY,
    "use_sde": NO_GSDE,
    "sde_sample_freq": NO_GSDE,
    "optimizer_class": "the optimiser is always Adam",
    "normalize_advantage": "PPO here always normalises advantages",
    "norm_adv": "PPO here always normalises advantages",
    "vf_coef": NOT_IN_PPO,
    "clip_range_vf": NOT_IN_PPO,
    "clip_vloss": NOT_IN_PPO,
    "target_kl": NOT_IN_PPO,
}
"""Their names that have no counterpart, and why."""


def end_of_message(name: str, known: Collection[str], spell: Callable[[str], str] = str) -> str:
    """What follows "there is no such knob"; `spell` writes names as the user types them."""
    if reason := WITHOUT.get(name):
        return f", because {reason}."
    ours = OURS.get(name) or tuple(knob for knob in known if knob.endswith(f".{name}"))
    if ours:
        return f". Did you mean {' or '.join(map(spell, ours))}?"
    if "." in name:
        return f".{suggest(spell(name), map(spell, known))}"
    by_last_word = {knob.rpartition(".")[2]: knob for knob in known}
    found = nearest(name, by_last_word)
    return f". Did you mean {spell(by_last_word[found])}?" if found else "."
