"""Every algorithm solves a known task, repeats with a seed, resumes from a checkpoint and can be exported."""

from __future__ import annotations

import dataclasses
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, get_args

import gymnasium as gym
import numpy as np
import onnxruntime
import pytest
from safetensors.numpy import load_file, save_file

import cases
import fakes
import spreeze
from spreeze.cli.commands import eval as eval_command
from spreeze.cli.commands import export
from spreeze.cli.commands.train import report
from spreeze.cli.playback import env_to_play
from spreeze.policy import Policy, PolicyForm
from spreeze.policy.onnx import compare, export_onnx
from spreeze.run.supervisor import Run as Ended
from spreeze.settings.defaults import config_with, default_config
from spreeze.spec import Activation, EnvSpec
from spreeze.store.rundir import RunDir
from spreeze.user_code import import_named
from user_runs import records

every = pytest.mark.parametrize(("name", "kind"), cases.CASES)
EXAMPLES = Path(__file__).parents[2] / "examples"
KNOWN = {"Box": (fakes.ReachEnv, -0.01), "Discrete": (fakes.ChoiceEnv, 0.97)}


def train(algo: str, kind: str, runs: str, **knobs: Any) -> Any:
    """Train in one process, where a seed repeats: the result does not depend on the machine."""
    env, target = KNOWN[kind]
    usual = {"algo.hidden": (32, 32), "algo.lr": 1e-3, "target": target, "steps": "20k", "seed": 0}
    usual["evaluator.episodes"] = 30
    return spreeze.train(env, algo=algo, runs=runs, serial=True, **{**usual, **knobs})


def parameters(run: Any) -> dict[str, Any]:
    return load_file(run.path / "checkpoints" / "last" / "train.safetensors")


@every
def test_a_known_task_is_solved(name: str, kind: str, runs: str) -> None:
    run = train(name, kind, runs)
    assert run.summary["reason"] == "target"
    assert run.summary["algo"] == name
    policy = spreeze.load(run.path)
    for obs, choice in ((-0.8, 0), (0.0, 1), (0.8, 2)):
        action, _ = policy.predict(np.array([obs]), deterministic=True)
        if kind == "Box":
            assert action[0] == pytest.approx(obs / 2, abs=0.25)
        else:
            assert action == choice


@every
def test_a_seed_repeats_and_a_checkpoint_is_complete(name: str, kind: str, runs: str) -> None:
    knobs = {"target": None, "steps": "2500", "algo.hidden": (8,), "learner.batch_size": 32}
    first, second = (train(name, kind, runs, name=n, **knobs) for n in ("a", "b"))
    ours, theirs = parameters(first), parameters(second)
    assert first.summary["updates"] > 0
    assert ours["updates"] == first.summary["updates"]
    assert all(np.array_equal(ours[key], theirs[key]) for key in ours)
    env, _ = KNOWN[kind]
    more = {"resume": "a", "runs": runs, "steps": "5500", "name": "c"}
    resumed = spreeze.train(env, **more)
    assert resumed.summary["updates"] > first.summary["updates"]
    assert set(parameters(resumed)) == set(ours)
    assert parameters(resumed)["updates"] == resumed.summary["updates"]


def test_resuming_with_other_networks_is_refused(runs: str) -> None:
    train("sac", "Box", runs, name="a", target=None, steps="1500")
    for knobs, message in (
        ({"algo.normalise_obs": True}, "--algo.normalise-obs True"),
        ({"algo.hidden": (8,)}, r"--algo.hidden 8 \(was 32 32\): refused"),
    ):
        with pytest.raises(spreeze.UsageError, match=message):
            spreeze.train(fakes.ReachEnv, resume="a", runs=runs, **knobs)


@pytest.fixture(scope="module")
def cart_pole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on CartPole-v1 without flags, for the tests below."""
    folder = tmp_path_factory.mktemp("user")
    command = [sys.executable, "-m", "spreeze", "train", "CartPole-v1", "--target", "450"]
    done = subprocess.run(
        [*command, "--time", "90s", "--name", "c", "--learner.no-compile"],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        timeout=110,
    )
    assert done.returncode == 0, done.stderr
    assert "reached its target" in done.stdout
    assert "PPO needs the fewest updates" in done.stderr
    return folder / "runs" / "c"


def test_discrete_actions_are_learned_asynchronously(cart_pole: Path) -> None:
    config = RunDir(cart_pole).read("config")
    assert config["config"]["algo"] == "ppo"
    assert config["config"]["learner"]["ratio_bounds"][0] == 0
    assert records(cart_pole, "learner-0")[-1]["train/clip_fraction"] < 0.9


def test_a_discrete_policy_acts_without_torch(cart_pole: Path) -> None:
    code = (
        "import sys, gymnasium as gym, spreeze\n"
        f"policy, env = spreeze.load({str(cart_pole)!r}), gym.make('CartPole-v1')\n"
        "total = 0\n"
        "for seed in range(10):\n"
        "    over, (obs, _) = False, env.reset(seed=seed)\n"
        "    while not over:\n"
        "        action, _ = policy.predict(obs, deterministic=True)\n"
        "        obs, reward, terminated, truncated, _ = env.step(action)\n"
        "        total, over = total + reward, terminated or truncated\n"
        "assert total > 10 * 200, total\n"
        "assert 'torch' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_the_documented_code_runs_a_policy_without_spreeze(cart_pole: Path, tmp_path: Path) -> None:
    """The code in docs/algorithms.md must act like our policy."""
    manual = (EXAMPLES.parent / "docs" / "algorithms.md").read_text()
    (code,) = (
        block.split("```")[0] for block in manual.split("```python\n") if "def act(" in block
    )
    code = code.replace("runs/my-run", str(cart_pole))
    scope: dict[str, Any] = {}
    exec(code, scope)
    assert "spreeze" not in code
    policy = spreeze.load(cart_pole)
    for obs in np.random.default_rng(0).normal(size=(20, 4)).astype(np.float32):
        assert scope["act"](obs) == policy.predict(obs, deterministic=True)[0]
    form = PolicyForm(
        hidden=(16, 16, 8),
        head="values",
        quantiles=3,
        layer_norm=True,
        activation="gelu",
        residual=True,
    )
    normed = Policy(cases.DISCRETE, form)
    normed.vector[:] = np.random.default_rng(0).normal(size=normed.vector.size)
    (tmp_path / "p").mkdir()
    save_file(normed.named(), tmp_path / "p" / "policy.safetensors")
    (tmp_path / "p" / "config.json").write_text(json.dumps({"policy": normed.describe()}))
    scope = {}
    exec(code.replace(f"{cart_pole}/checkpoints/best", str(tmp_path / "p")), scope)
    for obs in np.random.default_rng(0).normal(size=(50, 4)).astype(np.float32):
        assert scope["act"](obs) == normed.predict(obs, deterministic=True)[0]
    run = train("fastsac", "Box", str(tmp_path / "runs"), target=None, steps="2000")
    scope = {}
    exec(code.replace(str(cart_pole), str(run.path)), scope)
    policy = spreeze.load(run.path)
    for obs in np.random.default_rng(0).normal(size=(20, 1)).astype(np.float32):
        expected, _ = policy.predict(obs, deterministic=True)
        np.testing.assert_allclose(scope["act"](obs), expected, atol=1e-5)


def test_eval_and_export_of_a_discrete_policy(cart_pole: Path) -> None:
    folder = cart_pole.parent.parent
    for arguments in (
        ["eval", "c", "--episodes", "3", "--json", "eval.json"],
        ["export", "c", "--onnx", "p.onnx"],
    ):
        done = subprocess.run(
            [sys.executable, "-m", "spreeze", *arguments],
            cwd=folder,
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        assert done.returncode == 0, done.stderr
    assert "Checked with onnxruntime" in done.stdout
    assert json.loads((folder / "eval.json").read_text())["mean"] > 200
    assert compare(spreeze.load(cart_pole), folder / "p.onnx") == 0


WIDE = cases.BOX.__class__(
    id="wide",
    obs_shape=(2, 3),
    action_shape=(2, 2),
    action_low=(-1.0, -1.0, 0.0, -5.0),
    action_high=(1.0, 2.0, 3.0, -4.0),
)


@pytest.mark.parametrize("layer_norm", [False, True])
@pytest.mark.parametrize("activation", get_args(Activation))
@pytest.mark.parametrize("residual", [False, True])
def test_every_kind_of_layer_is_exported(
    activation: Any, residual: bool, layer_norm: bool, tmp_path: Path
) -> None:
    form = PolicyForm(
        hidden=(16, 16, 8, 8), layer_norm=layer_norm, activation=activation, residual=residual
    )
    policy = Policy(WIDE, form)
    policy.vector[:] = np.random.default_rng(0).normal(size=policy.vector.size) / 3
    assert export_onnx(policy, tmp_path / "p.onnx") < 1e-5


@pytest.mark.parametrize("normalised", [False, True])
@pytest.mark.parametrize("layer_norm", [False, True])
@pytest.mark.parametrize(
    ("head", "quantiles"),
    [
        ("tanh_gaussian", 1),
        ("tanh", 1),
        ("gaussian", 1),
        ("categorical", 1),
        ("values", 1),
        ("values", 5),
    ],
)
def test_an_exported_graph_equals_the_policy(
    head: Any, quantiles: int, normalised: bool, layer_norm: bool, tmp_path: Path
) -> None:
    spec = cases.DISCRETE if head in ("categorical", "values") else WIDE
    layers = {"normalised": normalised, "layer_norm": layer_norm}
    form = PolicyForm(hidden=(16, 8), head=head, quantiles=quantiles, **layers)
    policy = Policy(spec, form)
    policy.vector[:] = np.random.default_rng(0).normal(size=policy.vector.size)
    assert export_onnx(policy, tmp_path / "p.onnx") < 1e-5
    policy.vector[:] = np.random.default_rng(1).normal(size=policy.vector.size)
    assert compare(policy, tmp_path / "p.onnx") > 1e-2, "the check sees another policy"


def test_a_run_on_a_class_is_played_if_the_class_is_named() -> None:
    policy = Policy(dataclasses.replace(WIDE, id="Mine"), PolicyForm(hidden=(2,)))
    with pytest.raises(spreeze.UsageError, match=r"run r was.*--env package\.module:Mine"):
        env_to_play(policy, "run r", None)
    assert env_to_play(policy, "run r", "my.module:Mine") == "my.module:Mine"


def test_an_exported_graph_stays_within_the_bounds(tmp_path: Path) -> None:
    """Also for bounds that single precision cannot represent: 0.4 becomes 0.40000001."""
    bounds = np.random.default_rng(0).uniform(-3, 3, (2, 40))
    low, high = np.append(bounds.min(0), -0.4), np.append(bounds.max(0), 0.4)
    spec = EnvSpec(
        id="x", obs_shape=(1,), action_shape=(41,), action_low=tuple(low), action_high=tuple(high)
    )
    policy = Policy(spec, PolicyForm(hidden=(2,), head="tanh"))
    file = tmp_path / "p.onnx"
    for far in (-100.0, 100.0):
        policy.named()["b1"][:] = far
        export_onnx(policy, file)
        session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
        (action,) = session.run(None, {"obs": np.zeros((1, 1), np.float32)})
        assert (action.astype(np.float64) >= low).all()
        assert (action.astype(np.float64) <= high).all()


def test_a_broken_policy_is_not_exported(tmp_path: Path) -> None:
    policy = Policy(WIDE, PolicyForm(hidden=(2,), head="tanh"))
    policy.vector[:] = np.nan
    with pytest.raises(RuntimeError, match="differs from the policy by nan"):
        export_onnx(policy, tmp_path / "p.onnx")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("example", ["custom_algorithm.py", "custom_network.py"])
def test_a_users_algorithm_is_named_by_its_file(example: str, runs: str, tmp_path: Path) -> None:
    """With processes, so that the learner has to find it. `make learning` trains it to the target."""
    knobs = {"algo.hidden": (16, 16), "learner.compile": False, "learner.batch_size": 32}
    run = spreeze.train(
        "Pendulum-v1", algo=f"{EXAMPLES / example}:ENTRY", runs=runs, steps="4000", **knobs
    )
    assert run.summary["updates"] > 0
    assert "-entry-" in run.path.name
    assert run.policy.predict(np.zeros(3), deterministic=True)[0].shape == (1,)
    with pytest.raises(spreeze.UsageError, match="your own code"):
        spreeze.train("Pendulum-v1", resume=run.path.name, runs=runs)
    named = f"{shutil.copy(EXAMPLES / example, tmp_path)}:ENTRY"  # wherever it is by now
    steps = run.summary["env_steps"] + 2000
    more = spreeze.train("Pendulum-v1", resume=run.path.name, runs=runs, algo=named, steps=steps)
    assert more.summary["updates"] > run.summary["updates"]
    assert len((EXAMPLES / "custom_algorithm.py").read_text().splitlines()) < 60


def test_a_policy_that_is_a_torch_module_acts_through_torch(
    runs: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Samplers, evaluator and playback do; only code that the caller names is run for a stored policy."""
    file = EXAMPLES / "custom_network.py"
    knobs = {"algo.hidden": (16, 16), "learner.compile": False, "learner.batch_size": 32}
    knobs |= {"evaluator.episodes": 2, "evaluator.every_steps": 1000, "visualizer.draw": "off"}
    algo = f"{file}:ENTRY"
    run = spreeze.train("Pendulum-v1", algo=algo, runs=runs, steps="4000", name="r", **knobs)
    assert "acts through torch, slower than numpy" in capsys.readouterr().err
    assert len(run.curve()["mean_return"]) > 0
    assert run.policy.form.module[0] == ("features.weight", (64, 3)), "named by this program"
    with pytest.raises(spreeze.UsageError, match=r"spreeze.load\(run, network=NAME\)"):
        spreeze.load(run.path)
    narrow = tmp_path / "narrow.py"
    narrow.write_text(file.read_text().replace("64", "32"))
    with pytest.raises(spreeze.UsageError, match=r"--resume: .* \(64, 3\).*narrow.* \(32, 3\)"):
        spreeze.train("Pendulum-v1", resume="r", runs=runs, algo=f"{narrow}:ENTRY")
    square, both = "nn.Linear(width, width)", "nn.Linear(width, 9), nn.ReLU(), nn.Linear(9, width)"
    other_block = file.read_text().replace(f"{square}, nn.ReLU(), {square}", both)
    narrow.write_text(other_block)
    with pytest.raises(spreeze.UsageError, match=r"--resume: .* critic is not .*narrow.*shape"):
        spreeze.train("Pendulum-v1", resume="r", runs=runs, algo=f"{narrow}:ENTRY")
    make_policy = import_named("--network", str(file)).make_policy
    policy = spreeze.load(run.path, network=make_policy)
    assert np.any(policy.predict(np.zeros(3), deterministic=True)[0])
    stored = ["r", "--runs", runs]
    with pytest.raises(spreeze.UsageError, match="torch module of your own code"):
        export.main([*stored, "--onnx", "x.onnx"], 0.0)
    with pytest.raises(spreeze.UsageError, match=r"--network file\.py:NAME"):
        eval_command.main([*stored, "--episodes", "1"], 0.0)
    for name in ("make_policy", "ENTRY"):
        network = ["--network", f"{file}:{name}"]
        assert eval_command.main([*stored, "--episodes", "1", *network], 0.0) == 0
    config = config_with(default_config(algo, env="Pendulum-v1"), {"runs": runs})
    assert f"--network {algo}" in report(Ended(run.path, run.summary), config)


@pytest.mark.learning
@pytest.mark.parametrize("example", ["custom_algorithm.py", "custom_network.py"])
def test_the_examples_reach_their_target(example: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / example)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
        timeout=150,
    )
    assert done.stdout.startswith("target after")


def test_discrete_vector_environments_train(runs: str) -> None:
    def vector() -> Any:
        return gym.make_vec("CartPole-v1", num_envs=4)

    for algo in ("dqn", "ppo"):
        run = spreeze.train(
            vector, algo=algo, runs=runs, serial=True, steps="3000", **{"algo.hidden": (16,)}
        )
        assert run.summary["updates"] > 0
