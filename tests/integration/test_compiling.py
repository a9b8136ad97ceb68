"""The compiled update: built in the background, verified, installed; or refused with a reason."""

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
from spreeze.algos import ALGORITHMS, find_algorithm
from spreeze.learning.compiled import compiler as compiling
from spreeze.learning.compiled import job
from spreeze.learning.compiled import verify as verification
from spreeze.learning.compiled.job import Compilation, Refusal, RefusalReason
from spreeze.learning.compiled.key import CompileKey, set_precision
from spreeze.learning.compiled.load import CompiledUpdate
from spreeze.learning.compiled.verify import find_mismatch
from spreeze.networks import unfused_arithmetic
from spreeze.policy.load import load_policy
from spreeze.roles.learner.compile_key import compile_keys
from spreeze.roles.learner.update_runner import UpdateRunner
from spreeze.settings.defaults import config_from_json, config_with, default_config
from spreeze.spec import EnvSpec
from spreeze.store.rundir import RunDir
from spreeze.wires.control import CompileState
from user_runs import records

WAYS = [("cpu", "float32"), ("cpu", "bf16")]
if torch.cuda.is_available():
    WAYS += [("cuda", "float32"), ("cuda", "tf32"), ("cuda", "bf16")]
CASES = [(*case, *way) for case in cases.CASES for way in WAYS]
ROUNDS = 30
ROUNDING, KINKS, KINK = 1e-5, 3, 2e-2
"""How far one round may be off, as a fraction of each vector's norm. Sometimes an input of a ReLU is so close
to zero that rounding decides whether a gradient passes. With PPO's thousand steps per batch that happened
once or twice in thirty rounds, and never with a smooth function in place of the ReLU; with FastTD3 once in
thirty rounds on one kind of processor."""
KINKED = ("ppo", "fasttd3")
LESS_PRECISE, MOMENTS = 5e-3, 0.5
"""The same in TF32 or bfloat16, and for Adam's moments. Plain updates in bfloat16 were off by at most
2.4e-3 and 0.25, over three times thirty rounds of each algorithm; a wrong gradient is off by 1."""


def key(
    name: str = "sac",
    precision: str = "float32",
    batch_size: int = 64,
    device: str = "cpu",
    kind: str = "Box",
    fused: bool = True,
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
        fused=fused,
    )


def filled(made: CompileKey) -> Any:
    """The plain update, with some transitions to learn from."""
    set_precision(made.precision)
    updater = made.updater(unfused_arithmetic(made.precision))
    updater._replay.insert(cases.random_rows(updater.algorithm, 400))
    return updater


def distances(state: dict[str, torch.Tensor], right: dict[str, torch.Tensor]) -> dict[str, float]:
    """Of each vector from the right one, as a fraction of its norm; infinite if it is NaN."""
    shares = {
        key: (state[key] - vector).norm() / vector.norm().clamp(min=1e-30)
        for key, vector in right.items()
    }
    return {key: float(share.nan_to_num(nan=torch.inf)) for key, share in shares.items()}


def result_of(compilation: Compilation) -> CompiledUpdate | Refusal:
    deadline = time.monotonic() + 100
    while (result := compilation.poll()) is None:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    compilation.close()
    return result


def refusal_of(compilation: Compilation) -> Refusal:
    result = result_of(compilation)
    assert isinstance(result, Refusal)
    return result


def compiled(made: CompileKey, log: Path) -> Any:
    """The compiled update, built in the background as in a run."""
    result = result_of(Compilation(made, log))
    assert isinstance(result, CompiledUpdate), result
    return result.step


def test_loading_leaves_no_files_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    made = key("sac", "float32")
    step = compiled(made, tmp_path / "log")
    assert not list(tmp_path.iterdir())
    assert find_mismatch(made, filled(made), step) is None, "it works without them"


@pytest.mark.parametrize(("name", "kind", "device", "precision"), CASES)
def test_many_compiled_updates_equal_the_plain_ones(
    name: str, kind: str, device: str, precision: str, tmp_path: Path
) -> None:
    made = key(name, precision, device=device, kind=kind)
    step = compiled(made, tmp_path / "log")
    exact, fast = filled(dataclasses.replace(made, precision="float32")), filled(made)
    assert find_mismatch(made, fast, step) is None
    fast.install_compiled(64, step)
    offs = []
    for i in range(ROUNDS):
        for updater in (exact, fast):
            set_precision("float32" if updater is exact else precision)
            torch.manual_seed(i)
            updater.run()
        offs.append(distances(fast.state, exact.state))
        # Start every round from the same state, so that rounding errors do not accumulate.
        torch._foreach_copy_(list(fast.state.values()), list(exact.state.values()))
    if precision == "float32":
        worst = [max(off.values()) for off in offs]
        assert sum(off > ROUNDING for off in worst) <= (KINKS if name in KINKED else 0), worst
        assert max(worst) < KINK, worst
    else:
        worst_of = {key: max(off[key] for off in offs) for key in exact.state}
        moments = {key: worst_of.pop(key) for key in exact.state if key.endswith(("_m", "_v"))}
        assert max(worst_of.values()) < LESS_PRECISE, worst_of
        assert max(moments.values()) < MOMENTS, moments
    assert "critic_loss" in fast.metrics()


@pytest.mark.parametrize(("name", "kind"), cases.CASES)
def test_an_update_is_the_same_operations_whatever_the_numbers(name: str, kind: str) -> None:
    """A compiled update is a trace: it must also hold for other transitions and a later state."""
    made = key(name, kind=kind)
    updater = filled(made)
    with torch.no_grad():
        blank = made.updater("float32", shape_only=True)
        traced = make_fx(blank.plain)(*blank.inputs(64))
    for _ in range(3):
        updater.run()
        inputs = updater.inputs(64)
        with torch.no_grad():
            pairs = zip(traced(*inputs), updater.plain(*inputs), strict=True)
        for ours, plain in pairs:
            torch.testing.assert_close(ours, plain, rtol=1e-5, atol=1e-6)


def test_where_our_kernels_do_not_work_the_plain_update_is_compiled(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A GPU that does not support the kernels still gets a compiled update."""
    tried = []

    def compile_or_fail(_: CompileKey, arithmetic: str) -> None:
        tried.append(arithmetic)
        if arithmetic == "fused_bf16":
            raise RuntimeError("out of shared memory")

    monkeypatch.setattr(compiling, "_compile", compile_or_fail)
    monkeypatch.setattr(CompileKey, "arithmetic", "fused_bf16")
    compiling.compile_step(key(precision="bf16", fused=False))
    assert tried == ["fused_bf16", "bf16"]
    assert "out of shared memory" in capsys.readouterr().err


def test_a_wrong_update_is_found() -> None:
    made = key()
    updater = filled(made)

    def wrong(*inputs: Any) -> Any:
        first, *rest = updater.plain(*inputs)
        return (first * 1.1, *rest)

    assert find_mismatch(made, updater, updater.plain) is None
    assert "critic" in str(find_mismatch(made, updater, wrong))


@pytest.mark.parametrize("change", ["batch_size", "capacity", "precision", "hidden"])
def test_the_path_depends_on_everything_that_is_compiled_in(change: str) -> None:
    made = key()
    if change == "hidden":
        other = dataclasses.replace(made, hyper=made.hyper | {"hidden": (32, 32)})
    else:
        other = dataclasses.replace(made, **{change: "bf16" if change == "precision" else 77})
    assert other.path() != made.path()
    faster = dataclasses.replace(
        made,
        hyper=made.hyper
        | {"lr": 0.5, "gamma": 0.5, "termination_cost": 9.0}
        | {"lr_schedule": "linear", "lr_end": 0.1, "target_entropy_schedule": "cosine"},
    )
    assert faster.path() == made.path(), "rates are data"


def test_for_a_user_algorithm_only_the_rates_are_known_to_be_data() -> None:
    """It may compute with any knob, whatever the knob means in ours."""
    example = f"{Path(__file__).parents[2] / 'examples' / 'custom_algorithm.py'}:ENTRY"
    hyper = dataclasses.asdict(find_algorithm(example).config(hidden=(16, 16)))
    made = dataclasses.replace(key(), algo=example, hyper=hyper)
    assert dataclasses.replace(made, hyper=made.hyper | {"gamma": 0.5}).path() != made.path()
    assert dataclasses.replace(made, hyper=made.hyper | {"lr": 0.5}).path() == made.path()


def test_a_missing_compiler_is_the_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job, "compiler", lambda: None)
    refusal = refusal_of(Compilation(key(batch_size=65), tmp_path / "log"))
    assert refusal.reason is RefusalReason.NO_CPP_COMPILER
    assert "no C++ compiler" in refusal.detail


def test_a_compilation_that_fails_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr("spreeze.learning.fusion.cpu.compiler", lambda: "/bin/false")
    refusal = refusal_of(Compilation(key(batch_size=66), tmp_path / "log"))
    assert refusal.reason is RefusalReason.COMPILATION_FAILED
    assert "compilation failed" in refusal.detail
    assert not list((tmp_path / "cache").rglob("*.bin")), "nothing half-made is kept"


def test_a_compiler_process_that_fails_says_where_to_look(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Torch's compiler makes updates for a GPU; here there is none."""
    if torch.cuda.is_available():
        pytest.skip("the compiler would succeed")
    monkeypatch.setattr(CompileKey, "path", lambda _: tmp_path / "none")
    made = key(batch_size=66, device="cuda", fused=False)
    refusal = refusal_of(Compilation(made, tmp_path / "log"))
    assert refusal.reason is RefusalReason.COMPILATION_FAILED
    assert str(tmp_path / "log") in refusal.detail
    assert "Error" in (tmp_path / "log").read_text()


def test_a_broken_file_in_the_cache_is_removed_and_reported(tmp_path: Path) -> None:
    made = key(batch_size=67)
    made.path().parent.mkdir(parents=True, exist_ok=True)
    made.path().write_bytes(b"not a compiled update")
    refusal = refusal_of(Compilation(made, tmp_path / "log"))
    assert refusal.reason is RefusalReason.NOT_LOADED
    assert "could not be loaded" in refusal.detail
    assert not made.path().exists(), "the next run compiles again"


def context(batch_size: int, tmp_path: Path, **knobs: str) -> Any:
    """The members of a learner's context that an `UpdateRunner` needs."""
    made = {"learner.batch_size": batch_size, "device": "cpu", "cores": "shared"}
    return SimpleNamespace(
        config=config_with(default_config(env="x"), made | knobs),
        counters={},
        control=SimpleNamespace(supervisor={"batch_size": batch_size}),
        run=SimpleNamespace(log=lambda _: tmp_path / "log"),
        note=lambda _: None,
    )


def test_a_verified_update_is_not_verified_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Unless the file has changed, or the algorithm is the user's, whose dependencies are unknown."""
    made = key()
    compiled(made, tmp_path / "log")
    record = made.path().with_suffix(".right")
    record.unlink(missing_ok=True)
    verified: list[str] = []

    def count(*what: Any) -> str | None:
        verified.append("verified")
        return find_mismatch(*what)

    monkeypatch.setattr(verification, "find_mismatch", count)
    monkeypatch.setattr(UpdateRunner, "_keys", lambda *_: [made])

    def learn(expected: CompileState = CompileState.COMPILED) -> dict[str, float]:
        updater = filled(made)
        ctx = context(64, tmp_path)
        UpdateRunner(ctx, updater, updater._replay).run()
        assert ctx.counters["compiled"] == expected
        return updater.metrics()

    with monkeypatch.context() as patch:
        patch.setattr(verification, "find_mismatch", lambda *_: "wrong")
        learn(CompileState.REFUSED)
    assert not record.exists()
    first = learn()
    assert verified == ["verified"]
    assert learn().keys() == first.keys()
    assert verified == ["verified"], "an earlier run has verified it"
    for broken in (record.read_text().replace('"form": "', '"form": "0'), "", "{}", "[]", None):
        verified.clear()
        record.unlink() if broken is None else record.write_text(broken)
        learn()
        assert verified == ["verified"]
    verified.clear()
    monkeypatch.setattr(verification, "algorithm_file", lambda _: Path("own.py"))
    learn()
    assert verified == ["verified"]


def test_what_another_run_compiles_meanwhile_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = key()
    compiled(made, tmp_path / "log")
    ready, path = made.path(), tmp_path / f"later{made.path().suffix}"
    monkeypatch.setattr(CompileKey, "path", lambda _: path)
    monkeypatch.setattr(Compilation, "_start_process", lambda _: pytest.fail("compiled again"))
    made = dataclasses.replace(made, fused=False)  # torch's compiler waits before it starts
    compilation = Compilation(made, tmp_path / "log", wait_s=0.1)
    assert compilation.poll() is None
    path.write_bytes(ready.read_bytes())
    assert isinstance(result_of(compilation), CompiledUpdate)


def test_a_compiler_that_cannot_be_started_does_not_end_learning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def start(*_: Any, **__: Any) -> Any:
        raise OSError(12, "Cannot allocate memory")

    monkeypatch.setattr(job.subprocess, "Popen", start)
    refusal = refusal_of(Compilation(key(batch_size=68, fused=False), tmp_path / "log"))
    assert refusal.reason is RefusalReason.NOT_STARTED
    assert "Cannot allocate memory" in refusal.detail


@pytest.fixture
def run_with_cached_update(tmp_path: Path, runs: str) -> Path:
    """A run that finds its update in the cache."""
    knobs = {"algo": "sac", "algo.hidden": (64, 64), "replay.capacity": 10_000}
    knobs["learner.batch_size"] = 64
    first = spreeze.train(
        fakes.wide_env, runs=runs, steps="2000", **knobs, **{"learner.compile": False}
    )
    config = config_from_json(RunDir(first.path).read("config")["config"])
    spec = EnvSpec.from_json(RunDir(first.path).read("config")["env_spec"])
    (wanted,) = compile_keys(config, spec, 64)
    compiled(wanted, tmp_path / "log")
    return spreeze.train(fakes.wide_env, runs=runs, time="7s", **knobs).path


def test_the_compiled_update_is_installed_while_learning_goes_on(
    run_with_cached_update: Path,
) -> None:
    path = run_with_cached_update
    lines = records(path, "learner-0")
    assert lines[-1]["perf/compiled"] == CompileState.COMPILED
    assert not (path / "logs" / "compiler.log").exists(), "nothing was compiled again"
    updates = [line["updates"] for line in lines]
    assert updates == sorted(updates)
    assert len(set(updates)) == len(updates), "learning never stood still for a second"
    # The weights published after the switch are the new ones.
    last = load_policy(path / "checkpoints" / "last")
    state = load_file(path / "checkpoints" / "last" / "train.safetensors")
    np.testing.assert_array_equal(last.vector, state["actor"][: last.vector.size])
    assert state["updates"] == json.loads((path / "summary.json").read_text())["updates"]
