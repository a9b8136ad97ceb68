"""Reads a policy from a checkpoint folder."""

from __future__ import annotations

from pathlib import Path

from spreeze.errors import DamagedFile
from spreeze.policy.form import PolicyForm
from spreeze.policy.module import MakeModule, make_policy
from spreeze.policy.policy import Policy
from spreeze.spec import EnvSpec
from spreeze.store.manifest import read_checkpoint
from spreeze.store.tensors import MAX_HEADER_BYTES, check_tensors

MAX_PARAMETERS = 1 << 28


def load_policy(folder: Path, network: MakeModule | None = None) -> Policy:
    """The policy in a checkpoint folder; DamagedFile if it is not whole. Loading runs no code but `network`.

    `network` makes the torch module of a policy that has one; UsageError without it.
    """
    described = read_checkpoint(folder, ["config.json"]).data["config"].get("policy")
    try:
        if not isinstance(described, dict):
            raise DamagedFile("there is no description of a policy.")
        spec = EnvSpec.from_json(described.get("spec"))
        form = PolicyForm.from_json({k: v for k, v in described.items() if k != "spec"})
        if form.size(spec) > MAX_PARAMETERS:
            raise DamagedFile(f"the policy is described with {form.size(spec):,} parameters.")
        if spec.discrete != (form.head in ("categorical", "values")):
            raise DamagedFile(f"the policy's head {form.head} does not fit its actions.")
    except DamagedFile as error:
        raise DamagedFile(f"{folder / 'config.json'}: {error}") from None
    # Read before memory is allocated for it: the file must be as large as its description says.
    limit = 4 * form.size(spec) + MAX_HEADER_BYTES
    stored = read_checkpoint(folder, ["policy.safetensors"], limit=limit).tensors["policy"]
    if problems := check_tensors(stored, form.shapes(spec)):
        raise DamagedFile(f"{folder / 'policy.safetensors'}: {', '.join(problems)}.")
    policy = make_policy(spec, form, network)
    for name, target in policy.named().items():
        target[...] = stored[name]
    return policy
