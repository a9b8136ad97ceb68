"""A policy that is given as a torch module: dense layers become numpy's, the rest stays a module, some are refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import cases
from spreeze.errors import UsageError
from spreeze.networks import policy_from_module
from spreeze.policy import Policy, PolicyForm

Make = Callable[[], nn.Module]
WIDTH = 16


def layers(*middle: nn.Module) -> nn.Module:
    """Four observations to two actions, with these between the first and the last layer."""
    return nn.Sequential(nn.Linear(4, WIDTH), *middle, nn.Linear(WIDTH, 2))


class Residual(nn.Module):
    """Two hidden layers in functions of torch, the second with its input added."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.last = nn.Linear(WIDTH, 2)

    def hidden(self, layer: nn.Module, x: Tensor) -> Tensor:
        return F.silu(F.layer_norm(layer(x), (WIDTH,)))

    def forward(self, x: Tensor) -> Tensor:
        x = self.hidden(self.first, x)
        return self.last(x + self.hidden(self.second, x))  # type: ignore[no-any-return]


class Branching(nn.Module):
    """One of two networks, by the values of the observations."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 2), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return (self.first if x[0, 0] < 100 else self.second)(x)  # type: ignore[no-any-return]


class Spare(nn.Module):
    """A layer, and another one that is not used."""

    def __init__(self) -> None:
        super().__init__()
        self.used, self.spare = nn.Linear(4, 2), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.used(x)  # type: ignore[no-any-return]


class Noisy(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + torch.randn(2)


def plain_norm() -> nn.Module:
    return nn.LayerNorm(WIDTH, elementwise_affine=False)


DENSE: dict[str, tuple[Make, tuple[int, ...]]] = {
    "relu": (lambda: layers(nn.ReLU()), (WIDTH,)),
    "tanh": (lambda: layers(nn.Tanh(), nn.Linear(WIDTH, WIDTH), nn.Tanh()), (WIDTH, WIDTH)),
    "elu": (lambda: layers(nn.ELU()), (WIDTH,)),
    "silu": (lambda: layers(nn.SiLU(inplace=True)), (WIDTH,)),
    "gelu": (lambda: layers(nn.Sequential(nn.GELU(approximate="tanh"))), (WIDTH,)),
    "layer norm": (lambda: layers(plain_norm(), nn.ReLU()), (WIDTH,)),
    "residual": (Residual, (WIDTH, WIDTH)),
    "linear": (lambda: nn.Linear(4, 2), ()),
}


def from_module(make: Make) -> Any:
    return policy_from_module(make, 4, 2, "float32")


@pytest.mark.parametrize("name", DENSE)
def test_a_module_of_dense_layers_acts_in_numpy(name: str) -> None:
    make, hidden = DENSE[name]
    network, dense, _ = from_module(make)
    assert dense.sizes == (4, *hidden, 2)
    form = PolicyForm(hidden=hidden, head="gaussian", **dense.style._asdict())
    policy = Policy(cases.BOX, form)
    policy.vector[: network.shapes.size] = network.init(torch.Generator().manual_seed(7))
    with torch.random.fork_rng():  # the initial parameters are those of the module
        seed = int(torch.randint(2**31, (), generator=torch.Generator().manual_seed(7)))
        torch.manual_seed(seed)
        module = make()
    obs = np.random.default_rng(0).normal(0, 2, (300, 4)).astype(np.float32)
    with torch.no_grad():
        right = module(torch.from_numpy(obs)).numpy()
        trained = network(torch.from_numpy(policy.vector[: network.shapes.size]), torch.tensor(obs))
    np.testing.assert_allclose(policy.act(obs, explore=False), right, atol=1e-5)
    np.testing.assert_allclose(trained.numpy(), right, atol=1e-5)


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda: layers(nn.Sigmoid()), "numpy cannot run sigmoid"),
        (lambda: layers(nn.GELU()), 'numpy runs GELU with approximate="tanh"'),
        (lambda: layers(nn.ELU(0.5)), "numpy runs ELU with alpha=1"),
        (lambda: layers(nn.LayerNorm(WIDTH), nn.ReLU()), "elementwise_affine=False"),
        (lambda: layers(nn.ReLU(), plain_norm()), "numpy cannot run layer_norm"),
        (layers, "follows another one without activation"),
        (lambda: layers(nn.ReLU(), nn.Linear(WIDTH, WIDTH), nn.Tanh()), "it mixes activations"),
        (lambda: nn.Sequential(nn.Linear(4, 2), nn.Tanh()), "its last layer is not a Linear"),
        (lambda: nn.Linear(4, 2, bias=False), "a Linear without bias"),
        (lambda: layers(nn.ReLU(), nn.ReLU()), "numpy cannot run relu"),
        (Branching, "numpy cannot run __getitem__"),
        (Spare, "spare.weight is not the weight or bias of a Linear"),
        (
            lambda: nn.Sequential(nn.Unflatten(1, (1, 4)), nn.Conv1d(1, 2, 4), nn.Flatten()),
            "numpy cannot run unflatten",
        ),
    ],
)
def test_any_other_module_stays_one_and_the_reason_is_said(make: Make, why: str) -> None:
    network, dense, why_not = from_module(make)
    assert dense is None
    assert why in why_not
    assert network.shapes.items == tuple((n, tuple(p.shape)) for n, p in make().named_parameters())
    flat = network.init(torch.Generator().manual_seed(0))
    assert network(flat, torch.randn(5, 4)).shape == (5, 2)


def test_a_layer_that_is_used_twice_is_not_translated() -> None:
    again = nn.Linear(WIDTH, WIDTH)
    _, dense, why = from_module(lambda: layers(nn.ReLU(), again, nn.ReLU(), again, nn.ReLU()))
    assert dense is None
    assert why == "it uses a layer twice"


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: nn.Linear(4, 3), r"returns \(64, 3\) for 64 observations .* needs \(64, 2\)"),
        (lambda: nn.GRU(4, 2), "GRU returns tuple"),
        (lambda: layers(nn.BatchNorm1d(WIDTH)), "state besides its parameters: 1.running_mean"),
        (lambda: layers(nn.BatchNorm1d(WIDTH, track_running_stats=False)), "mixes the rows"),
        (lambda: layers(nn.Dropout(0.1)), r"random numbers: 1 \(Dropout\) drops out 0.1"),
        (lambda: Noisy(4, 2), "Noisy draws random numbers"),
        (nn.Identity, "Identity has no parameters"),
        (lambda: nn.Linear(4, 2).double(), r"weight is torch.float64; .* must be float32"),
        (lambda: None, "policy_module returns NoneType, not a torch module"),
    ],
)
def test_what_cannot_be_a_policy_is_refused(make: Make, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        from_module(make)
