"""The folder of a new run, with what is known before the start."""

from __future__ import annotations

import datetime
import platform
import re
import sys
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

from spreeze.errors import UsageError
from spreeze.machine.facts import cpu_name
from spreeze.settings.config import Config
from spreeze.store.files import write_atomic
from spreeze.store.rundir import RunDir
from spreeze.text import without_secrets

if TYPE_CHECKING:
    from spreeze.run.plan import Plan


def create_run(asked: Config, plan: Plan) -> RunDir:
    """Create the run directory and write what is known before the start."""
    path = claim_folder(plan.config)
    try:
        for folder in ("metrics", "checkpoints", "logs"):
            (path / folder).mkdir()
        _write_facts(path, asked, plan)
    except OSError as error:
        raise UsageError([f"the run cannot be stored in {path}: {error.strerror}"]) from None
    return RunDir(path)


def _write_facts(path: Path, asked: Config, plan: Plan) -> None:
    config, machine = plan.config, plan.machine
    reasons = {name: reason.text for name, reason in plan.reasons.items()}
    stored: dict[str, object] = {
        "config": config.to_json(),
        "reasons": reasons,
        "asked": asked.to_json(),
    }
    if plan.callbacks:
        stored["callbacks"] = plan.callbacks
    if plan.started_from is not None:
        stored["started_from"] = plan.started_from.to_json()
    if plan.resumed is not None:
        stored["resumed"] = plan.resumed.to_json()
    write_atomic(path / "config.json", {**stored, "env_spec": plan.spec.to_json()})
    write_atomic(
        path / "system.json",
        {
            "command": without_secrets(sys.argv),
            "cpu": cpu_name(),
            "cores": machine.cores,
            "memory_gib": round(machine.memory_bytes / 2**30, 1),
            "gpus": [gpu.name for gpu in machine.gpus],
            "python": platform.python_version(),
            "platform": platform.platform(),
            "versions": {
                name: version(name) for name in ("spreeze", "torch", "numpy", "gymnasium")
            },
        },
    )


def claim_folder(config: Config) -> Path:
    """A folder for this run alone; creating it is the claim."""
    # Absolute, because an environment may change the working directory.
    folder = Path(config.runs).absolute()
    if config.name is None:
        stamp = datetime.datetime.now().strftime("%Y%m%d-%H%M%S")
        short = re.sub(r"[^\w.]+", "-", config.env).strip("-")[:80]
        algo = config.algo.rpartition(":")[2].lower()
        default = f"{short}-{algo}-{config.seed}-{stamp}"
        names = [default, *(f"{default}-{i}" for i in range(2, 100))]
    else:
        names = [config.name]
    for name in names:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            (folder / name).mkdir(mode=0o700)  # what the page's token guards is not for other users
        except FileExistsError:
            continue
        except OSError as error:
            raise UsageError([f"no run can be stored in {folder}: {error.strerror}"]) from None
        return folder / name
    hint = f"Give another --name, or continue it with --resume {names[0]}."
    raise UsageError([f"run {folder / names[0]} exists already. {hint}"])
