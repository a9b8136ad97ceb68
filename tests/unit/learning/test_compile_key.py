"""The key of a compiled update covers all the code that the update is made of."""

from __future__ import annotations

import dataclasses
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import cases
import spreeze
from spreeze.algos import ALGORITHMS
from spreeze.learning.compiled import key as key_module
from spreeze.learning.compiled.key import CompileKey

ROOT = Path(spreeze.__file__).parent
TRACE = """
import json, sys
import torch
from torch.fx.experimental.proxy_tensor import make_fx
import cases
from spreeze.learning.state import init_state
from spreeze.learning.two_devices.critic_actor import ActorUpdater, CriticUpdater
from spreeze.learning.updater import Updater, UpdateSetup

for name, kind in cases.CASES:
    algorithm = cases.built(name, kind)
    replay = cases.filled_replay(algorithm, 64)
    setup = UpdateSetup(algorithm, replay, init_state(algorithm, 0, replay.device), 16, (0.1, 0.1))
    updaters = [Updater(setup)]
    if algorithm.actor_loss is not None:
        updaters += [CriticUpdater(setup), ActorUpdater(setup, replay.device)]
    for updater in updaters:
        with torch.no_grad():
            make_fx(updater.plain)(*updater.inputs(16))
ours = [module.__file__ for name, module in sys.modules.items() if name.startswith("spreeze.")]
print(json.dumps(ours))
"""


def sac_key() -> CompileKey:
    return CompileKey(
        algo="sac",
        hyper=dataclasses.asdict(ALGORITHMS["sac"].config(hidden=(16,))),
        spec=cases.BOX.to_json(),
        capacity=100,
        batch_size=16,
        device="cpu",
        precision="float32",
        threads=1,
    )


def test_a_change_in_any_module_that_an_update_imports_changes_the_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = json.dumps([str(ROOT.parent), str(Path(cases.__file__).parent)])
    program = f"import sys; sys.path[:0] = {paths}\n{TRACE}"
    traced = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    imported = [Path(file).relative_to(ROOT) for file in json.loads(traced.stdout)]
    assert Path("algos/sac.py") in imported
    copy = tmp_path / "spreeze"
    shutil.copytree(ROOT, copy, ignore=lambda *_: {"__pycache__", "dashboard"})
    monkeypatch.setattr(key_module, "SOURCE_ROOT", copy)
    before = sac_key().path()
    for file in imported:
        original = (copy / file).read_text()
        (copy / file).write_text(original + "\n# changed\n")
        assert sac_key().path() != before, f"{file} is not covered"
        (copy / file).write_text(original)
    assert sac_key().path() == before
