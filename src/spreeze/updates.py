"""From losses to updates: gradients, Adam, target mixing, for every algorithm alike.

`make_update` is one pure function of plain tensors. How it is executed is `Updater`'s business
alone: eager on the CPU, replayed as one CUDA graph on a GPU. A faster way to run the same function
(a compiler, several updates per call, two devices) has its place in `Updater._prepare`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from spreeze.algos.base import Algorithm, Metrics
from spreeze.replay import Replay
from spreeze.spec import Batch

State = dict[str, Tensor]
Loss = Callable[..., tuple[Tensor, Metrics]]
Update = Callable[[State, Batch, Tensor, Tensor], tuple[State, Metrics]]

ADAM_BETAS = (0.9, 0.999)
ADAM_EPS = 1e-8


def init_state(algorithm: Algorithm, seed: int, device: torch.device) -> State:
    """Fresh networks, target and optimiser moments."""
    # Drawn on the CPU, so that a seed means the same networks on every device.
    actor, critic = algorithm.init(torch.Generator().manual_seed(seed))
    state = {"actor": actor, "critic": critic, "target": critic.clone()}
    for name in ("actor", "critic"):
        state[f"{name}_m"] = torch.zeros_like(state[name])
        state[f"{name}_v"] = torch.zeros_like(state[name])
    state["updates"] = torch.zeros(())
    return {name: tensor.to(device) for name, tensor in state.items()}


def adam(
    param: Tensor, grad: Tensor, m: Tensor, v: Tensor, step: Tensor, lr: float
) -> tuple[Tensor, Tensor, Tensor]:
    """One Adam step on a flat vector; returns the new parameter and moments."""
    beta1, beta2 = ADAM_BETAS
    m = torch.lerp(m, grad, 1 - beta1)
    v = torch.lerp(v, grad.square(), 1 - beta2)
    m_hat = m / (1 - beta1**step)
    v_hat = v / (1 - beta2**step)
    return param - lr * m_hat / (v_hat.sqrt() + ADAM_EPS), m, v


def gradient(loss: Loss, param: Tensor, *rest: Any) -> tuple[Tensor, Metrics]:
    """The gradient of a loss by its first argument, and the loss's metrics.

    By plain autograd: `torch.func.grad` gives the same numbers, but its first call imports the
    whole of torch._dynamo, a second in which nothing is learned.
    """
    leaf = param.detach().requires_grad_()
    with torch.enable_grad():
        value, metrics = loss(leaf, *rest)
        (grad,) = torch.autograd.grad(value, leaf)
    return grad, metrics


def make_update(algorithm: Algorithm, lr: float, tau: float) -> Update:
    """The update as a pure function: (state, batch, two noises) -> (state, metrics)."""

    def update(
        s: State, batch: Batch, critic_noise: Tensor, actor_noise: Tensor
    ) -> tuple[State, Metrics]:
        step = s["updates"] + 1
        grad, critic_metrics = gradient(
            algorithm.critic_loss, s["critic"], s["target"], s["actor"], batch, critic_noise
        )
        critic, critic_m, critic_v = adam(s["critic"], grad, s["critic_m"], s["critic_v"], step, lr)
        grad, actor_metrics = gradient(algorithm.actor_loss, s["actor"], critic, batch, actor_noise)
        actor, actor_m, actor_v = adam(s["actor"], grad, s["actor_m"], s["actor_v"], step, lr)
        state = {
            "actor": actor,
            "critic": critic,
            "target": torch.lerp(s["target"], critic, tau),
            "actor_m": actor_m,
            "actor_v": actor_v,
            "critic_m": critic_m,
            "critic_v": critic_v,
            "updates": step,
        }
        return state, {**critic_metrics, **actor_metrics}

    return update


class Updater:
    """Runs updates on one device; its state tensors keep their addresses for ever."""

    def __init__(
        self,
        algorithm: Algorithm,
        replay: Replay,
        state: State,
        batch_size: int,
        lr: float,
        tau: float,
    ) -> None:
        """Prepare to update `state` from `replay`."""
        self.state = state
        self.device = replay.data.device
        self.batch_size = batch_size
        self._replay = replay
        self._update = make_update(algorithm, lr, tau)
        self._action_size = replay.gather(torch.zeros(1, device=self.device)).action.shape[1]
        self._metrics: Metrics = {}
        self._step: Callable[[], None] | None = None

    def run(self, num_updates: int) -> None:
        """So many updates; on a GPU this only enqueues them."""
        if self._step is None:
            self._step = self._prepare()
        for _ in range(num_updates):
            self._step()

    def metrics(self) -> dict[str, float]:
        """Metrics of the last update; this waits for the device, so call it rarely."""
        return {name: float(value) for name, value in self._metrics.items()}

    def _one_update(self) -> None:
        batch = self._replay.gather(torch.rand(self.batch_size, device=self.device))
        noise = torch.randn(2, self.batch_size, self._action_size, device=self.device)
        with torch.no_grad():
            state, metrics = self._update(self.state, batch, noise[0], noise[1])
            for name, tensor in state.items():
                self.state[name].copy_(tensor)
        self._metrics = metrics

    def _prepare(self) -> Callable[[], None]:
        """The fastest way to run one update on this device."""
        if self.device.type == "cuda":
            return self._capture()
        return self._one_update

    def _capture(self) -> Callable[[], None]:
        """One CUDA graph of the whole update: a launch instead of some two hundred."""
        torch.set_float32_matmul_precision("high")
        before = {name: tensor.clone() for name, tensor in self.state.items()}
        stream = torch.cuda.Stream(self.device)  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(stream):
            for _ in range(3):  # cuBLAS and the allocator settle before the capture
                self._one_update()
        torch.cuda.current_stream(self.device).wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self._one_update()
        for name, tensor in before.items():
            self.state[name].copy_(tensor)
        return graph.replay
