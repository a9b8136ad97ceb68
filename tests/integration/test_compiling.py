"""The compiled update: made in the background, checked, swapped in; or not, and then said."""

from __future__ import annotations

import dataclasses
import json
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file
from torch.fx.experimental.proxy_tensor import make_fx

import cases
import fakes
import spreeze
from spreeze.algos import ALGORITHMS
from spreeze.learning.compiled import compiler as compiling
from spreeze.learning.compiled import job
from spreeze.learning.compiled.job import Compilation
from spreeze.learning.compiled.key import CompileKey, set_precision
from spreeze.learning.compiled.verify import find_mismatch
from spreeze.networks import unfused_arithmetic
from spreeze.policy import load_policy
from spreeze.roles.learner import update_runner
from spreeze.roles.learner.compile_key import compile_key
from spreeze.roles.learner.update_runner import UpdateRunner
from spreeze.settings.config import config_from_json, config_with, default_config
from spreeze.spec import EnvSpec
from spreeze.store.rundir import RunDir
from user_runs import records

WAYS = [("cpu", "float32"), ("cpu", "bf16")]
if torch.cuda.is_available():
    WAYS += [("cuda", "float32"), ("cuda", "tf32"), ("cuda", "bf16")]
# Compilation takes half a minute each: `make learning` has the other algorithms, and bfloat16 on a CPU.
# That updates are the same operations whatever the numbers is tested below for all of them.
OFTEN = {("sac", "Box", *way) for way in WAYS if way != ("cpu", "bf16")}
CASES = [
    case if case in OFTEN else pytest.param(*case, marks=pytest.mark.learning)
    for case in [(*case, *way) for case in cases.CASES for way in WAYS]
]
ROUNDS = 30
ROUNDING, KINKS, KINK = 1e-5, 3, 2e-2
"""How far one round may be off, as a share of each vector's length. Now and then an input of a ReLU is so
close to zero that rounding decides whether a gradient passes; with PPO's thousand steps in a batch that
was seen once or twice in thirty rounds, and never with a smooth function in place of the ReLU."""
LESS_PRECISE, MOMENTS = 5e-3, 0.5
"""The same in TF32 or bfloat16; of Adam's moments. Plain updates in bfloat16 were at most
2.4e-3 and 0.25 away, over three times thirty rounds of each algorithm; a wrong gradient is 1 away."""


def key(
    name: str = "sac",
    precision: str = "float32",
    batch_size: int = 64,
    device: str = "cpu",
    kind: str = "Box",
) -> CompileKey:
    return CompileKey(
        algo=name,
        hyper=dataclasses.asdict(ALGORITHMS[name].config(hidden=(64, 64))),
        spec=cases.SPECS[kind].to_json(),
        capacity=10_000,
        batch_size=batch_size,
        device=device,
        precision=precision,
        threads=1,
    )


def filled(made: CompileKey) -> Any:
    """The plain update, with some transitions to learn from."""
    set_precision(made.precision)
    updater = made.updater(unfused_arithmetic(made.precision))
    updater._replay.insert(cases.random_rows(updater.algorithm, 400))
    return updater


def distances(state: dict[str, torch.Tensor], right: dict[str, torch.Tensor]) -> dict[str, float]:
    """Of each vector from the right one, as a share of its length; infinite if it is no number."""
    shares = {
        key: (state[key] - vector).norm() / vector.norm().clamp(min=1e-30)
        for key, vector in right.items()
    }
    return {key: float(share.nan_to_num(nan=torch.inf)) for key, share in shares.items()}


def settle(compilation: Compilation) -> None:
    deadline = time.monotonic() + 100
    while not compilation.poll():
        assert time.monotonic() < deadline
        time.sleep(0.05)
    compilation.close()


def compiled(made: CompileKey, log: Path) -> Any:
    """The compiled form, made in the background as the learner has it made."""
    compilation = Compilation(made, log)
    settle(compilation)
    assert compilation.step is not None, compilation.problem
    return compilation.step


def test_a_form_that_is_loaded_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    made = key("sac", "float32")
    step = compiled(made, tmp_path / "log")
    assert not list(tmp_path.glob("aotinductor*"))
    assert find_mismatch(made, filled(made), step) is None, "and works without it"


@pytest.mark.parametrize(("name", "kind", "device", "precision"), CASES)
def test_many_compiled_updates_equal_the_plain_ones(
    name: str, kind: str, device: str, precision: str, tmp_path: Path
) -> None:
    made = key(name, precision, device=device, kind=kind)
    step = compiled(made, tmp_path / "log")
    exact, fast = filled(dataclasses.replace(made, precision="float32")), filled(made)
    assert find_mismatch(made, fast, step) is None
    fast.use(64, step)
    offs = []
    for i in range(ROUNDS):
        for updater in (exact, fast):
            set_precision("float32" if updater is exact else precision)
            torch.manual_seed(i)
            updater.run()
        offs.append(distances(fast.state, exact.state))
        # Every round from the same state, so that each one counts and none is judged by what rounding grew to.
        torch._foreach_copy_(list(fast.state.values()), list(exact.state.values()))
    if precision == "float32":
        worst = [max(off.values()) for off in offs]
        assert sum(off > ROUNDING for off in worst) <= (KINKS if name == "ppo" else 0), worst
        assert max(worst) < KINK, worst
    else:
        worst_of = {key: max(off[key] for off in offs) for key in exact.state}
        moments = {key: worst_of.pop(key) for key in exact.state if key.endswith(("_m", "_v"))}
        assert max(worst_of.values()) < LESS_PRECISE, worst_of
        assert max(moments.values()) < MOMENTS, moments
    assert "critic_loss" in fast.metrics()


@pytest.mark.parametrize(("name", "kind"), cases.CASES)
def test_an_update_is_the_same_operations_whatever_the_numbers(name: str, kind: str) -> None:
    """What is compiled is a trace: it must hold for other transitions and a later state too."""
    made = key(name, kind=kind)
    updater = filled(made)
    with torch.no_grad():
        traced = make_fx(made.updater("float32", hollow=True).plain)(
            *made.updater("float32", hollow=True).inputs(64)
        )
    for _ in range(3):
        updater.run()
        inputs = updater.inputs(64)
        with torch.no_grad():
            pairs = zip(traced(*inputs), updater.plain(*inputs), strict=True)
        for ours, plain in pairs:
            torch.testing.assert_close(ours, plain, rtol=1e-5, atol=1e-6)


def test_without_a_form_of_our_own_kernels_the_plain_one_is_compiled(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A GPU that the kernels do not fit still gets a compiled update."""
    tried = []

    def compile_or_fail(_: CompileKey, arithmetic: str) -> None:
        tried.append(arithmetic)
        if arithmetic == "fused_bf16":
            raise RuntimeError("out of shared memory")

    monkeypatch.setattr(compiling, "_compile", compile_or_fail)
    monkeypatch.setattr(CompileKey, "arithmetic", "fused_bf16")
    compiling.compile_step(key(precision="bf16"))
    assert tried == ["fused_bf16", "bf16"]
    assert "out of shared memory" in capsys.readouterr().err


def test_a_wrong_update_is_not_taken() -> None:
    made = key()
    updater = filled(made)

    def wrong(*inputs: Any) -> Any:
        first, *rest = updater.plain(*inputs)
        return (first * 1.1, *rest)

    assert find_mismatch(made, updater, updater.plain) is None
    assert "critic" in str(find_mismatch(made, updater, wrong))


@pytest.mark.parametrize("change", ["batch_size", "capacity", "precision", "hidden"])
def test_whatever_is_compiled_in_is_in_the_name(change: str) -> None:
    made = key()
    if change == "hidden":
        other = dataclasses.replace(made, hyper=made.hyper | {"hidden": (32, 32)})
    else:
        other = dataclasses.replace(made, **{change: "bf16" if change == "precision" else 77})
    assert other.path() != made.path()
    faster = dataclasses.replace(
        made, hyper=made.hyper | {"lr": 0.5, "gamma": 0.5, "termination_cost": 9.0}
    )
    assert faster.path() == made.path(), "rates are given as data"


def test_of_an_algorithm_of_ones_own_only_rates_are_known_to_be_data() -> None:
    """It may compute with any knob, whatever that means in ours."""
    example = Path(__file__).parents[2] / "examples" / "custom_algorithm.py"
    made = dataclasses.replace(key(), algo=f"{example}:ENTRY")
    assert dataclasses.replace(made, hyper=made.hyper | {"gamma": 0.5}).path() != made.path()
    assert dataclasses.replace(made, hyper=made.hyper | {"lr": 0.5}).path() == made.path()


def test_no_compiler_is_said_in_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job, "compiler", lambda: None)
    compilation = Compilation(key(batch_size=65), tmp_path / "log")
    settle(compilation)
    assert compilation.step is None
    assert "no C++ compiler" in (compilation.problem or "")


def test_a_compilation_that_fails_says_where_to_look(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CXX", "/bin/false")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    compilation = Compilation(key(batch_size=66), tmp_path / "log")
    settle(compilation)
    assert compilation.step is None
    assert str(tmp_path / "log") in (compilation.problem or "")
    assert "Error" in (tmp_path / "log").read_text()


def test_a_form_that_cannot_be_loaded_stays_with_the_compiler(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It may even crash whoever loads it, and that must not be the learner."""
    import torch._inductor

    def write(_: Any, package_path: str) -> None:
        Path(package_path).write_bytes(b"not a compiled update")

    monkeypatch.setattr(torch._inductor, "aoti_compile_and_package", write)
    made = key(batch_size=68)
    with pytest.raises(RuntimeError):
        compiling.compile_step(made)
    assert not made.path().exists()


def test_a_spoilt_file_in_the_cache_is_removed_and_said(tmp_path: Path) -> None:
    made = key(batch_size=67)
    made.path().parent.mkdir(parents=True, exist_ok=True)
    made.path().write_bytes(b"not a compiled update")
    compilation = Compilation(made, tmp_path / "log")
    settle(compilation)
    assert compilation.step is None
    assert "could not be loaded" in (compilation.problem or "")
    assert not made.path().exists(), "the next run compiles anew"


def context(batch_size: int, tmp_path: Path, **knobs: str) -> Any:
    """As much of a learner's context as swapping needs."""
    made = {"learner.batch_size": batch_size, "device": "cpu", "cores": "shared"}
    return SimpleNamespace(
        config=config_with(default_config(env="x"), made | knobs),
        counters={},
        control=SimpleNamespace(supervisor={"batch_size": batch_size}),
        run=SimpleNamespace(log=lambda _: tmp_path / "log"),
        note=lambda _: None,
    )


def test_a_form_that_was_found_right_is_not_looked_at_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Unless it is another one now, or of an algorithm that may compute with what we do not know of."""
    made = key()
    compiled(made, tmp_path / "log")
    proof = made.path().with_suffix(".right")
    proof.unlink(missing_ok=True)
    looked: list[str] = []

    def look(*what: Any) -> str | None:
        looked.append("looked")
        return find_mismatch(*what)

    monkeypatch.setattr(update_runner, "find_mismatch", look)
    monkeypatch.setattr(UpdateRunner, "_keys", lambda *_: [made])

    def learn(verdict: int = 1) -> dict[str, float]:
        updater = filled(made)
        ctx = context(64, tmp_path)
        UpdateRunner(ctx, updater, updater._replay).run()
        assert ctx.counters["compiled"] == verdict
        return updater.metrics()

    with monkeypatch.context() as patch:
        patch.setattr(update_runner, "find_mismatch", lambda *_: "wrong")
        learn(verdict=3)
    assert not proof.exists()
    first = learn()
    assert looked == ["looked"]
    assert learn().keys() == first.keys()
    assert looked == ["looked"], "an earlier run has done it"
    for spoilt in (proof.read_text().replace('"form": "', '"form": "0'), "", "{}", "[]", None):
        looked.clear()
        proof.unlink() if spoilt is None else proof.write_text(spoilt)
        learn()
        assert looked == ["looked"]
    looked.clear()
    monkeypatch.setattr(update_runner, "algorithm_file", lambda _: Path("own.py"))
    learn()
    assert looked == ["looked"]


@pytest.mark.parametrize(
    ("device", "cores", "begun"),
    [
        ("cpu", "shared", [0, 0, 0, 1]),
        ("cpu", "separate", [1, 1, 1, 1]),
        ("cuda", "shared", [1, 1, 1, 1]),
    ],
)
def test_a_learner_that_shares_its_cores_has_its_first_seconds_alone(
    device: str, cores: str, begun: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, started, made = [1000.0], [], key(device=device, batch_size=67)

    def start(_: Compilation) -> Any:
        started.append(clock[0])
        return SimpleNamespace(poll=lambda: None, kill=lambda: None, wait=lambda: None)

    monkeypatch.setattr("time.monotonic", lambda: clock[0])
    monkeypatch.setattr(Compilation, "_start", start)
    monkeypatch.setattr(CompileKey, "path", lambda _: tmp_path / "none yet")
    monkeypatch.setattr(UpdateRunner, "_keys", lambda *_: [made])
    updater = filled(key(batch_size=67))
    ctx = context(67, tmp_path, device=device, cores=cores)
    learner = UpdateRunner(ctx, updater, updater._replay)
    clock[0] += 5  # until there is something to learn from
    seen = []
    for seconds in (0, 1, 8.9, 0.2):
        clock[0] += seconds
        learner.run()
        seen.append(len(started))
    learner.close()
    assert seen == begun


def test_what_another_run_has_compiled_meanwhile_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = key()
    compiled(made, tmp_path / "log")
    ready, path = made.path(), tmp_path / f"later{made.path().suffix}"
    monkeypatch.setattr(CompileKey, "path", lambda _: path)
    monkeypatch.setattr(Compilation, "_start", lambda _: pytest.fail("compiled anew"))
    compilation = Compilation(made, tmp_path / "log", wait_s=0.1)
    assert not compilation.poll()
    path.write_bytes(ready.read_bytes())
    settle(compilation)
    assert compilation.step is not None, compilation.problem


def test_a_compiler_that_cannot_be_started_does_not_end_learning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def start(*_: Any, **__: Any) -> Any:
        raise OSError(12, "Cannot allocate memory")

    monkeypatch.setattr(job.subprocess, "Popen", start)
    compilation = Compilation(key(batch_size=68), tmp_path / "log")
    settle(compilation)
    assert "Cannot allocate memory" in (compilation.problem or "")


@pytest.fixture
def swapped(tmp_path: Path, runs: str) -> Path:
    """A run that finds its update compiled already, by an earlier run of the same shapes."""
    knobs = {"algo.hidden": (64, 64), "learner.batch_size": 64, "replay.capacity": 10_000}
    first = spreeze.train(
        fakes.wide_env, runs=runs, steps="2000", **knobs, **{"learner.compile": False}
    )
    config = config_from_json(RunDir(first.path).read("config")["config"])
    spec = EnvSpec.from_json(RunDir(first.path).read("config")["env_spec"])
    compiled(compile_key(config, spec, 64), tmp_path / "log")
    return spreeze.train(fakes.wide_env, runs=runs, time="7s", **knobs).path


def test_the_compiled_update_is_swapped_in_while_learning_goes_on(swapped: Path) -> None:
    lines = records(swapped, "learner-0")
    assert lines[-1]["perf/compiled"] == 1
    assert not (swapped / "logs" / "compiler.log").exists(), "nothing was compiled anew"
    updates = [line["updates"] for line in lines]
    assert updates == sorted(updates)
    assert len(set(updates)) == len(updates), "learning never stood still for a second"
    # What was published after the swap are the new weights.
    last = load_policy(swapped / "checkpoints" / "last")
    state = load_file(swapped / "checkpoints" / "last" / "train.safetensors")
    np.testing.assert_array_equal(last.vector, state["actor"][: last.vector.size])
    assert state["updates"] == json.loads((swapped / "summary.json").read_text())["updates"]
