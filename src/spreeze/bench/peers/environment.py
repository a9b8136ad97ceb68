"""Virtual environments of other frameworks, made when they are first needed, with the locked versions."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
import venv
from collections.abc import Callable
from importlib.metadata import version

from spreeze.bench.peers.settings import FOLDER
from spreeze.errors import RunFailed
from spreeze.machine.cache import cache_folder

TORCH = "torch"
"""Not in the locks: its packages differ between machines with and without a GPU. Spreeze's version is taken."""


def python_of(framework: str, report: Callable[[str], None]) -> str:
    """The Python of a framework's virtual environment, which is made if there is none for its lock."""
    lock = FOLDER / "locks" / f"{framework}.txt"
    torch = version(TORCH).partition("+")[0]
    named = f"{lock.read_text()}{torch}{sys.version}"
    digest = hashlib.sha256(named.encode()).hexdigest()[:12]
    folder = cache_folder() / "peers" / f"{framework}-{digest}"
    python = folder / "bin" / "python"
    if not (folder / "complete").exists():
        report(f"installing {framework} into {folder} ...")
        shutil.rmtree(folder, ignore_errors=True)
        venv.create(folder, with_pip=True)
        pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        _install([*pip, f"{TORCH}=={torch}"], framework)
        _install([*pip, "--no-deps", "--require-hashes", "-r", str(lock)], framework)
        (folder / "complete").touch()
    return str(python)


def _install(command: list[str], framework: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RunFailed(f"{done.stderr.strip()}\n{framework} could not be installed")


def versions_of(python: str) -> dict[str, str]:
    """The versions of everything that is installed beside a Python."""
    code = "import json; from importlib.metadata import distributions as d; "
    code += "print(json.dumps({x.name: x.version for x in d()}))"
    done = subprocess.run([python, "-c", code], capture_output=True, text=True, check=True)
    found: dict[str, str] = json.loads(done.stdout)
    return dict(sorted(found.items()))
