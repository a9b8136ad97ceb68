"""Which form of the update runs: the moves of each batch size, and what the control wire says of them."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import cases
from spreeze.learning.compiled.job import Refusal, RefusalReason
from spreeze.learning.compiled.key import CompileKey
from spreeze.learning.compiled.load import CompiledUpdate
from spreeze.learning.compiled.verify import Verification
from spreeze.learning.state import init_state
from spreeze.learning.two_devices.updater import TwoDeviceUpdater
from spreeze.learning.updater import Updater, UpdateSetup
from spreeze.learning.updaters import AnyUpdater
from spreeze.roles.learner import update_runner
from spreeze.roles.learner.compile_key import compile_keys
from spreeze.roles.learner.update_runner import COMPILE_DELAY_S, UpdateRunner
from spreeze.settings.defaults import config_with, default_config
from spreeze.wires.control import CompileState

CPU = torch.device("cpu")


class Harness:
    """An `UpdateRunner` whose compilations end when the test says so."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, device: str = "cpu") -> None:
        self.results: dict[tuple[int, str], Refusal | None] = {}
        """By batch size and part; None is a compiled update."""
        self.later_results: dict[tuple[int, str], Refusal | None] = {}
        """The same of torch's compiler, which follows ours on a GPU."""
        self.begun: list[tuple[int, bool, float]] = []
        """Batch size, whether it is ours, and delay of each compilation."""
        self.mismatch: str | None = None
        self.compiled_runs: list[int] = []
        knobs = {"device": device, "learner.batch_size": 32, "replay.capacity": 300}
        more = {"replay.placement": "host", "learner.precision": "float32", "learner.threads": 1}
        self.ctx: Any = SimpleNamespace(
            config=config_with(default_config("sac", env="x"), knobs | more),
            spec=cases.BOX,
            counters={},
            control=SimpleNamespace(supervisor={"batch_size": 32}),
            run=SimpleNamespace(log=Path),
            note=lambda _: None,
        )
        algorithm = cases.built("sac", "Box")
        replay = cases.filled_replay(algorithm, 300)
        setup = UpdateSetup(algorithm, replay, init_state(algorithm, 0, CPU), 32, (1e-3, 0.01))
        self.updater: AnyUpdater = (
            Updater(setup) if device == "cpu" else TwoDeviceUpdater(setup, CPU, lockstep=True)
        )
        monkeypatch.setattr(update_runner, "Compilation", self.compilation)
        monkeypatch.setattr(update_runner, "verify", lambda *_: Verification(self.mismatch))
        self.runner = UpdateRunner(self.ctx, self.updater, replay)

    def compilation(self, key: Any, _log: Path, wait_s: float) -> Any:
        (part,) = (part for part in self.updater.parts if part.part == key.part)
        self.begun.append((key.batch_size, key.fused, wait_s))

        def step(*inputs: torch.Tensor) -> Any:
            self.compiled_runs.append(key.batch_size)
            return part.plain(*inputs)

        def poll() -> Any:
            results = self.results if key.fused else self.later_results
            result = results.get((key.batch_size, key.part), "running")
            if result == "running":
                return None
            return result or CompiledUpdate(key, Path("x"), step, "digest")

        return SimpleNamespace(key=key, poll=poll, close=lambda: None, is_compiling=not wait_s)

    def run(self, batch_size: int = 32) -> tuple[int, CompileState]:
        """One chunk; returns what the control wire says."""
        self.ctx.control.supervisor["batch_size"] = batch_size
        self.runner.run()
        assert self.updater.batch_size == self.ctx.counters["batch_size"]
        return self.ctx.counters["batch_size"], CompileState(self.ctx.counters["compiled"])


def test_updates_are_plain_until_the_compiled_form_is_verified(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = Harness(monkeypatch)
    assert made.run() == (32, CompileState.PLAIN)
    assert made.ctx.counters["compiling"] == 1
    assert not made.compiled_runs
    made.results[32, "whole"] = None
    assert made.run() == (32, CompileState.COMPILED)
    assert made.ctx.counters["compiling"] == 0
    assert made.compiled_runs == [32]


@pytest.fixture
def like_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch's compiler follows ours, though the updates of the test run on a CPU."""

    def keys(config: Any, spec: Any, size: int, _: Any, fused: bool = False) -> list[CompileKey]:
        (key,) = compile_keys(config, spec, size)
        return [dataclasses.replace(key, fused=fused)]

    monkeypatch.setattr(update_runner, "compile_keys", keys)


@pytest.mark.usefixtures("like_a_gpu")
def test_on_a_gpu_the_fused_form_runs_until_the_fastest_is_ready(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = Harness(monkeypatch)
    assert made.begun == [(32, True, 0.0)], "it begins before there is anything to learn from"
    made.results[32, "whole"] = None
    assert made.run() == (32, CompileState.FUSED)
    ((_, fused, wait_s),) = made.begun[1:]
    assert not fused
    assert 0 < wait_s <= COMPILE_DELAY_S, "torch's compiler takes cores from samplers: later"
    made.later_results[32, "whole"] = None
    assert made.run() == (32, CompileState.COMPILED)
    assert len(made.begun) == 2


@pytest.mark.usefixtures("like_a_gpu")
def test_on_a_gpu_each_compiler_may_fail_alone(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    made = Harness(monkeypatch)
    made.results[32, "whole"] = None
    made.later_results[32, "whole"] = Refusal(RefusalReason.COMPILATION_FAILED, "torch's failed")
    assert made.run() == made.run() == (32, CompileState.FUSED), "what works stays"
    made.results[48, "whole"] = Refusal(RefusalReason.COMPILATION_FAILED, "ours failed")
    assert made.run(48) == (32, CompileState.FUSED), "torch's may still be right"
    made.later_results[48, "whole"] = None
    assert made.run(48) == (48, CompileState.COMPILED)
    assert capsys.readouterr().out == "torch's failed\nours failed\n"


def test_a_size_stays_until_the_next_one_is_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    made = Harness(monkeypatch)
    assert made.run(48) == (48, CompileState.PLAIN), "nothing is ready: the size asked for runs"
    made.results[32, "whole"] = None
    assert made.run(32) == (32, CompileState.COMPILED)
    assert made.run(48) == (32, CompileState.COMPILED)
    made.results[48, "whole"] = Refusal(RefusalReason.COMPILATION_FAILED, "see the log")
    assert made.run(48) == (48, CompileState.REFUSED)
    assert made.run(64) == (48, CompileState.REFUSED), "plain for good is ready, too"
    assert made.run(32) == (32, CompileState.COMPILED), "each size keeps its form"


@pytest.mark.parametrize("reason", RefusalReason)
def test_the_reason_of_a_refusal_reaches_the_control_wire(
    reason: RefusalReason, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    made = Harness(monkeypatch)
    made.results[32, "whole"] = Refusal(reason, "in words, even of a C++ compiler")
    no_compiler = reason is RefusalReason.NO_CPP_COMPILER
    expected = CompileState.NO_CPP_COMPILER if no_compiler else CompileState.REFUSED
    assert made.run() == made.run() == (32, expected)
    assert capsys.readouterr().out == "in words, even of a C++ compiler\n", "once in the log"


def test_an_update_that_differs_is_never_run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    made = Harness(monkeypatch)
    made.mismatch = "critic is off"
    made.results[32, "whole"] = None
    assert made.run() == (32, CompileState.REFUSED)
    assert not made.compiled_runs
    assert "differs from the plain one: critic is off" in capsys.readouterr().out


def test_on_two_devices_both_parts_must_be_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    made = Harness(monkeypatch, device="cpu,cpu")
    made.results[32, "critic"] = None
    assert made.run() == (32, CompileState.PLAIN)
    made.results[32, "actor"] = Refusal(RefusalReason.NOT_LOADED, "broken file")
    assert made.run() == (32, CompileState.REFUSED)
    assert made.compiled_runs, "the part that is right runs all the same"
    made.runner.close()


def test_a_serial_run_stays_plain(monkeypatch: pytest.MonkeyPatch) -> None:
    made = Harness(monkeypatch)
    made.ctx.config = config_with(made.ctx.config, {"serial": True})
    made.results[32, "whole"] = None
    made.runner = UpdateRunner(made.ctx, made.updater, made.runner._replay)
    assert made.run() == (32, CompileState.PLAIN)
    assert not made.compiled_runs
