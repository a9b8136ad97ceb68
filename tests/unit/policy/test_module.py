"""A policy that acts by a torch module: like the numpy policy, and only with code that the caller names."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch import nn

import cases
from spreeze.errors import DamagedFile, UsageError
from spreeze.policy import Policy, PolicyForm, make_policy
from spreeze.policy.load import load_policy
from spreeze.store.checkpoint import save_best

HEADS = {"tanh_gaussian": "Box", "tanh": "Box", "gaussian": "Box", "categorical": "Discrete"}


def make(inputs: int, outputs: int) -> nn.Module:
    """One layer as a module: numpy could run it, so both can be compared."""
    return nn.Linear(inputs, outputs)


def pair(head: Any) -> tuple[Policy, Policy]:
    """The same policy in numpy and by the module."""
    spec = cases.SPECS[HEADS[head]]
    dense = PolicyForm(hidden=(), head=head, normalised=True)
    inputs, outputs = dense.sizes(spec)
    module = (("weight", (outputs, inputs)), ("bias", (outputs,)))
    ours = Policy(spec, dense)
    theirs = make_policy(
        spec, PolicyForm(hidden=(), head=head, normalised=True, module=module), make
    )
    ours.vector[:] = np.random.default_rng(0).normal(0, 0.5, ours.vector.size)
    theirs.vector[:] = ours.vector  # as new weights arrive
    theirs.named()["module.weight"][...] = ours.named()["w0"].T
    return ours, theirs


@pytest.mark.parametrize("head", HEADS)
def test_it_acts_like_the_numpy_policy(head: str) -> None:
    obs = np.random.default_rng(1).normal(0, 1, (20, 4)).astype(np.float32)
    ours, theirs = pair(head)
    for policy in (ours, theirs):
        policy.seed(3)
    for explore in (True, False):
        right = ours.act(obs, explore).copy()
        np.testing.assert_allclose(theirs.act(obs, explore), right, atol=1e-5)
        np.testing.assert_allclose(theirs.log_prob, ours.log_prob, atol=1e-5)
    obs.flags.writeable = False
    np.testing.assert_allclose(theirs.predict(obs)[0].shape, ours.predict(obs)[0].shape)


def test_a_copy_keeps_its_parameters_when_new_weights_arrive() -> None:
    _, policy = pair("tanh")
    obs = np.ones((2, 4), np.float32)
    before, kept = policy.act(obs, False).copy(), policy.copy()
    policy.vector[:] = 0
    assert not np.allclose(policy.act(obs, False), before)
    np.testing.assert_array_equal(kept.act(obs, False), before)


def test_a_checkpoint_needs_its_module_named(tmp_path: Path) -> None:
    _, policy = pair("tanh")
    data = {"config": {"policy": policy.describe()}}
    save_best(tmp_path, 1, {"policy": policy.named()}, data)
    folder = tmp_path / "best"
    loaded, obs = load_policy(folder, make), np.ones((2, 4), np.float32)
    np.testing.assert_array_equal(loaded.act(obs, False), policy.act(obs, False))
    with pytest.raises(UsageError, match=r"weight \(2, 4\).*--network file.py:NAME"):
        load_policy(folder)
    with pytest.raises(UsageError, match=r"weight \(3, 4\), .* the policy has weight \(2, 4\)"):
        load_policy(folder, lambda inputs, outputs: nn.Linear(inputs, outputs + 1))


@pytest.mark.parametrize(
    "module", [7, [["w"]], [[1, [2]]], [["w", [-1]]], [["w", ["2"]]], [["", [2]]], [["w", 3]]]
)
def test_a_damaged_description_is_refused(module: Any) -> None:
    with pytest.raises(DamagedFile):
        PolicyForm.from_json(asdict(PolicyForm(hidden=())) | {"module": module})
