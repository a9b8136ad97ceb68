"""Networks as functions of a flat vector: padding, precision, initialisation."""

from __future__ import annotations

import math
from functools import partial
from typing import get_args

import pytest
import torch

from spreeze.networks import init_uniform, mlp, mlp_network, mlp_shapes, module_network
from spreeze.networks.layers import ACTIVATIONS, UNPADDED_OUTPUTS, pad_for_tensor_cores
from spreeze.spec import Activation


@pytest.mark.parametrize(("inputs", "outputs"), [(23, 101), (24, 34), (256, 12), (17, 104)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_zero_padded_layer_computes_the_same(
    inputs: int, outputs: int, dtype: torch.dtype
) -> None:
    torch.manual_seed(0)
    x, w, b = torch.randn(40, inputs), torch.randn(inputs, outputs), torch.randn(outputs)
    x, w, b = (tensor.to(dtype).requires_grad_() for tensor in (x, w, b))
    padded_x, padded_w, padded_b = pad_for_tensor_cores(x, w, b)
    padded = torch.addmm(padded_b, padded_x, padded_w)[:, :outputs]
    assert outputs <= UNPADDED_OUTPUTS or padded_w.shape[1] % 8 == 0
    assert dtype == torch.float32 or padded_w.shape[0] % 8 == 0
    close = {"rtol": 1e-5, "atol": 1e-5} if dtype == torch.float32 else {"rtol": 0.02, "atol": 0.1}
    plain = torch.addmm(b, x, w)
    torch.testing.assert_close(padded, plain, **close)
    goal = torch.randn(40, outputs, dtype=dtype)
    for ours, right in zip(
        torch.autograd.grad((padded * goal).sum(), (x, w, b)),
        torch.autograd.grad((plain * goal).sum(), (x, w, b)),
        strict=True,
    ):
        torch.testing.assert_close(ours, right, **close)


@pytest.mark.parametrize("name", get_args(Activation))
def test_activations_are_those_of_the_library(name: Activation) -> None:
    x = torch.cat([torch.linspace(-6, 6, 101), torch.tensor([-200.0, 200.0])]).requires_grad_()
    usual = {"gelu": partial(torch.nn.functional.gelu, approximate="tanh")}
    right = usual.get(name, getattr(torch.nn.functional, name))(x)
    ours = ACTIVATIONS[name](x)
    torch.testing.assert_close(ours, right)
    torch.testing.assert_close(
        torch.autograd.grad(ours.sum(), x), torch.autograd.grad(right.sum(), x)
    )


def test_each_member_of_an_ensemble_is_a_network_of_its_own_parameters() -> None:
    sizes = [5, 8, 8, 2]
    shapes, single = mlp_shapes(sizes, ensemble=3), mlp_shapes(sizes)
    flat = init_uniform(shapes, torch.Generator().manual_seed(0))
    x = torch.randn(7, 5, generator=torch.Generator().manual_seed(1))
    together = mlp(shapes, flat, "float32", x[:, :3], x[:, 3:])
    assert together.shape == (3, 7, 2)
    params = shapes.split(flat)
    for i in range(3):
        alone = torch.cat([params[name][i].reshape(-1) for name, _ in single.items])
        torch.testing.assert_close(together[i], mlp(single, alone, "float32", x))


def test_initial_parameters_are_in_the_bounds_of_torch_linear() -> None:
    network = mlp_network([4, 64, 1], "float32")
    params = network.shapes.split(network.init(torch.Generator().manual_seed(0)))
    for name, bound in (("w0", 4), ("b0", 4), ("w1", 64), ("b1", 64)):
        largest = params[name].abs().max()
        assert largest <= 1 / math.sqrt(bound)
        assert name == "b1" or largest > 0.8 / math.sqrt(bound)


def test_in_bf16_only_hidden_layers_are_rounded() -> None:
    shapes = mlp_shapes([4, 32, 32, 1])
    flat = init_uniform(shapes, torch.Generator().manual_seed(0))
    flat[-1] = 300.03  # the last bias; bfloat16 would make it 300
    x = torch.randn(64, 4, generator=torch.Generator().manual_seed(1))
    exact, rounded = mlp(shapes, flat, "float32", x), mlp(shapes, flat, "bf16", x)
    assert rounded.dtype == torch.float32
    assert 0 < (rounded - exact).abs().max() < 0.02


def test_a_module_is_a_network_of_one_vector() -> None:
    def make() -> torch.nn.Module:
        return torch.nn.Bilinear(3, 2, 1)

    network = module_network(make, copies=2)
    flat = network.init(torch.Generator().manual_seed(3))
    assert torch.equal(flat, network.init(torch.Generator().manual_seed(3)))
    assert flat.shape == (network.shapes.size,)
    obs, action = torch.randn(5, 3), torch.randn(5, 2)
    out = network(flat, obs, action)
    for i in range(2):
        module = make()
        named = {name: value[i] for name, value in network.shapes.split(flat).items()}
        module.load_state_dict(named)
        torch.testing.assert_close(out[i], module(obs, action))
    assert not torch.equal(out[0], out[1]), "each copy begins with its own parameters"
    with pytest.raises(ValueError, match="BatchNorm1d has state besides parameters: running_mean"):
        module_network(lambda: torch.nn.BatchNorm1d(3), copies=2)
