"""Reads a policy from a checkpoint folder."""

from __future__ import annotations

from pathlib import Path

from spreeze.policy.form import PolicyForm
from spreeze.policy.policy import Policy
from spreeze.spec import EnvSpec


def load_policy(folder: Path) -> Policy:
    """The policy in a checkpoint folder. The files hold data only: loading them runs no code."""
    import json

    from safetensors.numpy import load_file

    description = json.loads((folder / "config.json").read_text())["policy"]
    spec = EnvSpec.from_json(description["spec"])
    form = {key: value for key, value in description.items() if key != "spec"}
    policy = Policy(spec, PolicyForm(**form | {"hidden": tuple(form["hidden"])}))
    stored = load_file(folder / "policy.safetensors")
    for name, target in policy.named().items():
        if name not in stored or stored[name].shape != target.shape:
            found = stored[name].shape if name in stored else "nothing"
            raise ValueError(
                f"{folder / 'policy.safetensors'}: {name} should have shape {target.shape}, found {found}"
            )
        target[...] = stored[name]
    return policy
