"""Fused updates give the numbers of the plain ones, or there is none."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, get_args

import pytest
import torch
from torch import Tensor

import cases
from fused import DEVICES, compare_with_plain
from spreeze.learning.fusion import cpu
from spreeze.learning.fusion.fuse import fuse, load_fused
from spreeze.learning.fusion.program import build_program, listing_of, waits
from spreeze.learning.fusion.record import record
from spreeze.learning.fusion.running import CpuKernels, FusedUpdate
from spreeze.learning.state import init_state
from spreeze.learning.updater import Updater, UpdateSetup
from spreeze.machine.facts import compiler
from spreeze.spec import Activation

pytestmark = pytest.mark.skipif(compiler() is None, reason="needs a C++ compiler")


def updater(name: str, kind: str, device: str = "cpu", **knobs: Any) -> Updater:
    where = torch.device(device)
    algorithm = cases.built(name, kind, **knobs)
    replay = cases.filled_replay(algorithm, 300, where)
    return Updater(
        UpdateSetup(algorithm, replay, init_state(algorithm, 0, where), 32, (1e-3, 0.01))
    )


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("name", "kind"), cases.CASES)
def test_every_algorithm_changes_its_state_as_the_plain_update_does(
    name: str, kind: str, device: str, tmp_path: Path
) -> None:
    compare_with_plain(updater(name, kind, device), 32, tmp_path)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("activation", get_args(Activation))
@pytest.mark.parametrize("layer_norm", [False, True])
def test_every_kind_of_layer_is_fused_as_the_plain_update_computes_it(
    activation: str, layer_norm: bool, device: str, tmp_path: Path
) -> None:
    knobs = {
        "activation": activation,
        "layer_norm": layer_norm,
        "actor_layer_norm": not layer_norm,
        "residual": True,
        "actor_hidden": (16, 16),
        "critic_hidden": (24, 24, 16),
    }
    compare_with_plain(updater("sac", "Box", device, **knobs), 32, tmp_path)


@pytest.mark.parametrize("device", DEVICES)
def test_quantiles_and_munchausen_are_fused_as_the_plain_update_computes_them(
    device: str, tmp_path: Path
) -> None:
    knobs = {"quantiles": 8, "munchausen": 0.9}
    compare_with_plain(updater("dqn", "Discrete", device, **knobs), 32, tmp_path)


@pytest.mark.parametrize("name", ["sac", "ppo"])
def test_rates_that_change_reach_the_fused_update(name: str, tmp_path: Path) -> None:
    """They are inputs: a schedule needs no other update."""
    made = updater(name, "Box")
    fuse(made.plain, made.inputs(32), made.device, tmp_path / "update")
    step = load_fused(tmp_path / "update", made.device)
    for rate, shift in ((1e-2, -3.0), (1e-4, 0.5)):
        made.set_learning_rate(rate)
        made.set_entropy_shift(shift)
        inputs = made.inputs(32)
        with torch.no_grad():
            right, ours = made.plain(*inputs), step(*inputs)
        actor = made.plain.output_names.index("actor")
        changes = [out[actor] - made.state["actor"] for out in (right, ours)]
        assert float(changes[0].abs().max()) == pytest.approx(rate, rel=0.1), "Adam's first step"
        torch.testing.assert_close(changes[1], changes[0], rtol=1e-2, atol=rate / 50)
    made.set_learning_rate(0.0)
    made.install_compiled(32, step)
    before = made.state["actor"].clone()
    made.run()
    assert torch.equal(made.state["actor"], before)


def fused(
    function: Callable[..., tuple[Tensor, ...]], *inputs: Tensor, threads: int = 1
) -> FusedUpdate:
    """The fused form of any function on a CPU."""
    program = build_program(record(function, inputs), cpu.CpuLoops(threads))
    binaries, starts = cpu.build(program, "x.so", threads)
    with TemporaryDirectory() as folder:
        path = Path(folder) / "x.so"
        path.write_bytes(binaries["x.so"][1])
        kernels = CpuKernels(path)
    return FusedUpdate(listing_of(program, starts), program.constants, torch.device("cpu"), kernels)


A, B = torch.randn(6, 8), torch.randn(6, 8)
INDEX = torch.tensor([5, 0, -1, 3])
NAN = torch.tensor([float("nan"), -1.0, 2.0])
FUNCTIONS: dict[str, Callable[..., tuple[Tensor, ...]]] = {
    "elements": lambda a, b: (
        torch.tanh(a) * b.exp() - (a / (b.abs() + 1)) ** 2,
        a.clamp(-0.5, 0.5),
    ),
    "comparisons": lambda a, b: (torch.where((a < b) & (a > 0), a, b * 2.5), (a <= 0).float()),
    "powers": lambda a, b: (a.abs() ** 1.5, 0.9**b, a.abs().sqrt().rsqrt(), a.square()),
    "activations": lambda a, b: tuple(
        f(a) for f in (torch.sigmoid, torch.nn.functional.silu, torch.nn.functional.softplus)
    ),
    "views": lambda a, b: (a.T.reshape(3, 16)[1:, ::3], a.view(2, 3, 8).permute(2, 0, 1)[3]),
    "broadcasts": lambda a, b: (a[:, :1] + b[0], a.unsqueeze(1).expand(6, 4, 8).sum(1)),
    "parts": lambda a, b: (
        torch.cat([a, b[:2], a * 2]),
        torch.stack([a, b], 1),
        torch.cat([a, b], 1)[:, 5:11],
    ),
    "padding": lambda a, b: (torch.nn.functional.pad(a, (1, 2, 0, 3), value=7.0),),
    "split": lambda a, b: (*a.split([3, 5], 1), *b.unbind()[:2]),
    "reductions": lambda a, b: (
        a.sum(),
        b.mean(0),
        a.amax(1),
        (a * b).amin((0, 1)),
        a.view(2, 3, 8).sum(1),
    ),
    "few": lambda a, b: (torch.stack([a, b]).amin(0), torch.stack([a, b]).amax(0).mean()),
    "variance": lambda a, b: (a.var(0, correction=0), (10 + b).var(), a.var(1)),
    "softmax": lambda a, b: (
        a.softmax(-1),
        torch.log_softmax(b * 5, -1),
        (a.softmax(-1) * b).sum(-1),
    ),
    "norms": lambda a, b: (torch.nn.functional.layer_norm(a, (8,)), a.norm()),
    "products": lambda a, b: (a @ b.T, a @ b[0], torch.relu(a @ b.T) @ a, a[:, :1] @ b[:1]),
    "batched products": lambda a, b: (torch.bmm(a.view(2, 3, 8), b.view(2, 8, 3)),),
    "lookups": lambda a, b: (a[INDEX] * 2, a.gather(1, INDEX.abs()[:, None].expand(4, 3) % 6)),
    "lookups in what is computed": lambda a, b: (
        (a * 2).gather(1, (b * 9).long().clamp(0, 7)) + 1,
        torch.stack([a, b], 1).gather(2, (b * 9).long().clamp(0, 7)[:, None].expand(6, 2, 8)) * 3,
    ),
    "scattering": lambda a, b: (
        torch.zeros(6, 8)
        .scatter_add(1, (b * 100).long() % 8, a)
        .scatter_add(1, (a * 9).long() % 8, b)
        + 1,
    ),
    "scattering of sums": lambda a, b: (
        torch.zeros(6, 3).scatter_add(1, (b[:, :1] * 100).long() % 3, a.sum(1, keepdim=True)) + 1,
    ),
    "sorting": lambda a, b: (a.sort(-1)[0] + b, *torch.topk(b, 2)[:1]),
    "constants": lambda a, b: (a * torch.arange(8.0) + torch.linspace(-1, 1, 8), a + torch.ones(8)),
    "types": lambda a, b: ((a * 3).long().float() + b.double().float(), (a * 2).bfloat16()),
    "in place": lambda a, b: (torch.zeros_like(a).masked_fill_(a > 0, 3.0) + b,),
    "lerp": lambda a, b: (torch.lerp(a, b, 0.3), torch.lerp(a, b, b.sigmoid())),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_operations_give_the_numbers_of_the_library(name: str) -> None:
    function = FUNCTIONS[name]
    step = fused(function, A, B)
    for a, b in ((A, B), (B.flip(0).contiguous(), A * 3)):
        for ours, right in zip(step(a, b), function(a, b), strict=True):
            torch.testing.assert_close(ours, right, rtol=2e-5, atol=2e-6)


def test_several_threads_compute_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu, "PARALLEL_FROM", 8)

    def function(a: Tensor, b: Tensor) -> tuple[Tensor, ...]:
        wide = torch.cat([a, b, a]).T.contiguous()
        return (
            wide.softmax(-1) * 2,
            wide.sum(0),
            wide.sum(1),
            torch.cat([a.view(-1), b.view(-1)]) + 1,
        )

    for ours, right in zip(
        fused(function, A, B, threads=2)(A, B), fused(function, A, B)(A, B), strict=True
    ):
        torch.testing.assert_close(ours, right)


def test_gradients_are_recorded_too() -> None:
    def function(w: Tensor, x: Tensor) -> tuple[Tensor, ...]:
        leaf = w.detach().requires_grad_()
        with torch.enable_grad():
            hidden = torch.nn.functional.layer_norm(torch.relu(x @ leaf), (8,))
            loss = (hidden[:, 2:7].softmax(-1)[:, :3] * x[:, :3]).pow(2).mean()
            (grad,) = torch.autograd.grad(loss, [leaf])
        return loss.detach(), grad

    w = torch.randn(8, 8)
    for ours, right in zip(fused(function, w, A)(w, A), function(w, A), strict=True):
        torch.testing.assert_close(ours, right, rtol=1e-4, atol=1e-6)


def test_nan_passes_as_in_the_library() -> None:
    """A policy that diverged must not look finite."""

    def function(x: Tensor) -> tuple[Tensor, ...]:
        return x.clamp(-1, 1), torch.relu(x), torch.maximum(x, x.flip(0)), x.amax(0), x.clamp(min=0)

    for ours, right in zip(fused(function, NAN)(NAN), function(NAN), strict=True):
        torch.testing.assert_close(ours, right, equal_nan=True, rtol=0, atol=0)


def depends_on_values(x: Tensor) -> tuple[Tensor]:
    return (x + 1 if float(x.sum()) > 0 else x - 1,)


def draws_numbers(x: Tensor) -> tuple[Tensor]:
    return (x + torch.rand(3),)


def changes_a_view(x: Tensor) -> tuple[Tensor]:
    y = x * 2
    y[:2].add_(1)
    return (y,)


def returns_an_input(x: Tensor) -> tuple[Tensor]:
    return (x,)


@pytest.mark.parametrize(
    "function", [depends_on_values, draws_numbers, changes_a_view, returns_an_input]
)
def test_what_may_be_something_else_the_next_time_is_refused(
    function: Callable[[Tensor], tuple[Tensor]], tmp_path: Path
) -> None:
    with pytest.raises(RuntimeError, match="cannot be fused"):
        fuse(function, (torch.ones(3),), torch.device("cpu"), tmp_path / "update")
    assert not list(tmp_path.iterdir())


def test_results_of_a_call_may_be_the_inputs_of_the_next() -> None:
    step = fused(lambda x: (x * 2 + x.mean(),), A)
    first = step(A)[0]
    second = step(first)[0]
    torch.testing.assert_close(second, (A * 2 + A.mean()) * 2 + (A * 2 + A.mean()).mean())


def test_steps_may_run_in_every_order_that_their_waits_allow() -> None:
    """On a GPU they run on several streams, so this is what keeps them from reading unfinished memory."""
    made = updater("fastsac", "Box")
    inputs = made.inputs(32)
    program = build_program(record(made.plain, inputs), cpu.CpuLoops(1))
    needed = waits(program)
    assert any(len(before) > 1 for before in needed)
    step = fused(made.plain, *inputs)
    side = step._sides[0]
    memories = (*inputs, *step._constants, side._arena)
    right = [output.clone() for output in side.run(memories[:-1])]
    generator = random.Random(0)
    for _ in range(5):
        left, done = set(range(len(needed))), set[int]()
        while left:
            number = generator.choice([n for n in sorted(left) if done.issuperset(needed[n])])
            side._calls[number](memories)
            left.remove(number)
            done.add(number)
        for ours, output in zip(side._outputs, right, strict=True):
            torch.testing.assert_close(ours, output, rtol=0, atol=0)
