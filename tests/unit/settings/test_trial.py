"""A user's own algorithm is tried out before the run: what does not fit is refused by name."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

import cases
from spreeze.algos import ALGORITHMS, find_algorithm
from spreeze.errors import UsageError
from spreeze.settings.trial import try_algorithm

EXAMPLES = Path(__file__).parents[3] / "examples"
OWN = """
from spreeze.algos import Entry, sac
from spreeze.networks import Network, mlp_network, mlp_shapes
{code}
ENTRY = Entry(sac.SACConfig, build, "mine")
"""
CRITIC = """
def build(config, spec, arithmetic="float32"):
    critics = mlp_network([6, 8, {outputs}], arithmetic, ensemble={ensemble})
    return sac.build(config, spec, arithmetic, critics)
"""
ACTOR = """
import dataclasses
def build(config, spec, arithmetic="float32"):
    wide = dataclasses.replace(config, hidden=(9,))
    return dataclasses.replace(sac.build(wide, spec, arithmetic), config=config)
"""
INIT = """
import dataclasses
def build(config, spec, arithmetic="float32"):
    made = sac.build(config, spec, arithmetic)
    return dataclasses.replace(made, init=lambda g: (made.init(g)[0], made.init(g)[1][1:]))
"""


def tried(algo: str, kind: str = "Box", **knobs: Any) -> None:
    shape = {"hidden": (8,), "lr": 1e-3, **knobs}
    config = find_algorithm(algo).config
    if "tau" in config.__dataclass_fields__:
        shape |= {"tau": 0.01, "n_step": 1}
    try_algorithm(algo, dataclasses.asdict(config(**shape)), cases.SPECS[kind].to_json())


@pytest.mark.parametrize(("name", "kind"), cases.CASES)
def test_every_algorithm_of_the_registry_passes(name: str, kind: str) -> None:
    tried(name, kind)
    assert name in ALGORITHMS


@pytest.mark.parametrize("example", ["custom_algorithm.py", "custom_network.py"])
def test_the_examples_pass(example: str) -> None:
    tried(f"{EXAMPLES / example}:ENTRY")


@pytest.mark.parametrize(
    ("code", "said"),
    [
        (CRITIC.format(outputs=3, ensemble=2), r"critic network returns \(2, 8, 3\).*\(2, 8, 1\)"),
        (CRITIC.format(outputs=1, ensemble=3), r"critic network returns \(3, 8, 1\)"),
        (ACTOR, r"its policy has 85 parameters, and the samplers' policy has 76: w0 \(4, 8\)"),
        (INIT, r"init returns \(\d+,\) numbers for the critic; its shapes have \d+"),
    ],
)
def test_networks_that_do_not_fit_are_refused(code: str, said: str, tmp_path: Path) -> None:
    file = tmp_path / f"own{abs(hash(code))}.py"
    file.write_text(OWN.format(code=code))
    with pytest.raises(UsageError, match=f"--algo .*{said}"):
        tried(f"{file}:ENTRY")
