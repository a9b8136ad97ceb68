"""Seconds from the command to a score: Spreeze against Stable-Baselines3 on this machine, in turns.

    python bench/time_to_score.py [ENV TARGET LIMIT_S SEEDS]     default: Pendulum-v1 -200 120 5

Both start as a command, so imports count; both are judged by the mean of 10 episodes without noise.
Writes bench/results/time-to-score-<env>-<cores>cores.json and prints a table.
"""

import json
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path

from spreeze.placement import cpu_name, look_around

SB3 = """
import sys, gymnasium
from stable_baselines3 import SAC
from stable_baselines3.common.callbacks import EvalCallback, StopTrainingOnRewardThreshold
from stable_baselines3.common.monitor import Monitor
env, target, seed = sys.argv[1], float(sys.argv[2]), int(sys.argv[3])
stop = StopTrainingOnRewardThreshold(target)
judge = EvalCallback(Monitor(gymnasium.make(env)), callback_on_new_best=stop, eval_freq=500, n_eval_episodes=10, verbose=0)
SAC("MlpPolicy", env, seed=seed).learn(10**9, callback=judge)
"""


def spreeze(env: str, target: float, limit_s: float, seed: int, folder: str) -> float | None:
    """Wall-clock seconds of `spreeze train` until it has reached the target, as it says itself."""
    command = ["-m", "spreeze", "train", env, "--target", str(target), "--time", f"{limit_s}s"]
    name = ["--seed", str(seed), "--runs", folder, "--name", f"seed-{seed}"]
    subprocess.run([sys.executable, *command, *name], check=True, capture_output=True)
    summary = json.loads(Path(folder, f"seed-{seed}", "summary.json").read_text())
    return summary["time_to_target_s"]


def sb3(env: str, target: float, limit_s: float, seed: int, _folder: str) -> float | None:
    """Wall-clock seconds of Stable-Baselines3's SAC with its defaults."""
    began = time.monotonic()
    try:
        subprocess.run(
            [sys.executable, "-c", SB3, env, str(target), str(seed)],
            check=True,
            capture_output=True,
            timeout=limit_s,
        )
    except subprocess.TimeoutExpired:
        return None
    return time.monotonic() - began


def main() -> None:
    """Measure in turns, print, keep."""
    env, target, limit_s, seeds = (
        *sys.argv[1:],
        *["Pendulum-v1", "-200", "120", "5"][len(sys.argv) - 1 :],
    )
    frameworks = {"spreeze": spreeze, "sb3": sb3}
    times: dict[str, list[float | None]] = {name: [] for name in frameworks}
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        for seed in range(int(seeds)):
            for name, measure in frameworks.items():
                times[name].append(measure(env, float(target), float(limit_s), seed, folder))
                print(f"{env} to {target}: {name} seed {seed}: {times[name][-1]}", flush=True)
    machine = look_around()
    result = {
        "command": ["python", "bench/time_to_score.py", env, target, limit_s, seeds],
        "machine": {
            "cpu": cpu_name(),
            "cores": machine.cores,
            "gpu": [gpu.name for gpu in machine.gpus],
            "python": platform.python_version(),
            **{
                name: version(name)
                for name in ("spreeze", "torch", "stable-baselines3", "gymnasium")
            },
        },
        "seconds": round(time.monotonic() - began, 1),
        "env": env,
        "target": float(target),
        "limit_s": float(limit_s),
        "wall_s": times,
        "median_s": {
            n: statistics.median(t or float(limit_s) for t in values) for n, values in times.items()
        },
    }
    path = Path(__file__).parent / "results" / f"time-to-score-{env}-{machine.cores}cores.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(result, indent=2) + "\n")
    for name, median in result["median_s"].items():
        reached = sum(value is not None for value in times[name])
        print(f"{name:8} median {median:6.1f} s, reached by {reached} of {seeds} seeds")
    print(f"kept in {path}")


if __name__ == "__main__":
    main()
