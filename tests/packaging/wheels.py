"""Installs the wheel into a fresh environment of every Python that is found, and trains there for a moment.

    python tests/packaging/wheels.py [FOLDER ...]     FOLDER: more places to look for python3.11, 3.12, 3.13

`make wheels` calls it. It needs the network. PyTorch has the version of constraints.txt, as with the other targets.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
VERSIONS = ("3.11", "3.12", "3.13")
TRAIN = ("train", "CartPole-v1", "--steps", "3000", "--time", "60s", "--no-dashboard")


def find_python(version: str, folders: list[str]) -> str | None:
    """A Python of this version that can make virtual environments."""
    names = [shutil.which(f"python{version}"), *(f"{f}/python{version}" for f in folders)]
    home = Path.home() / ".pyenv" / "versions"
    names += map(str, home.glob(f"{version}.*/bin/python{version}"))
    works = "import sys, venv, ensurepip; print('%d.%d' % sys.version_info[:2])"
    for name in names:
        if name is None or not Path(name).exists():
            continue
        done = subprocess.run([name, "-c", works], capture_output=True, text=True, check=False)
        if done.stdout.strip() == version:
            return name
    return None


def build(python: str, folder: Path) -> Path:
    """Build the wheel."""
    command = [python, "-m", "pip", "wheel", "--quiet", "--no-deps", "-w", str(folder), str(ROOT)]
    subprocess.run(command, check=True)
    return next(folder.glob("spreeze-*.whl"))


def try_wheel(python: str, wheel: Path, folder: Path) -> None:
    """Install the wheel and train; CalledProcessError if anything fails."""
    subprocess.run([python, "-m", "venv", str(folder)], check=True)
    pip = [str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet"]
    subprocess.run([*pip, "-c", str(ROOT / "constraints.txt"), f"{wheel}[classic]"], check=True)
    command = str(folder / "bin" / "spreeze")
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environment["XDG_CACHE_HOME"] = str(folder / "cache")
    for arguments in (("--version",), TRAIN, ("eval",)):
        subprocess.run([command, *arguments], cwd=folder, env=environment, check=True)


def main() -> int:
    """Print which Pythons were found and whether the wheel works there; 1 if it does not, or if there is none."""
    pythons = {version: find_python(version, sys.argv[1:]) for version in VERSIONS}
    for version, python in pythons.items():
        print(f"Python {version}: {python or 'not found'}", flush=True)
    found = {version: python for version, python in pythons.items() if python}
    results = {version: "not found: not tested" for version in VERSIONS}
    with tempfile.TemporaryDirectory() as temporary:
        wheel = build(next(iter(found.values())), Path(temporary)) if found else None
        for version, python in found.items():
            assert wheel is not None
            print(f"\n{wheel.name} on Python {version}", flush=True)
            try:
                try_wheel(python, wheel, Path(temporary) / version)
            except subprocess.CalledProcessError as error:
                results[version] = f"FAILED: {' '.join(map(str, error.cmd))}"
            else:
                results[version] = "installed, trained, evaluated"
    print()
    for version, result in results.items():
        print(f"Python {version}: {result}")
    return int(not found or any(result.startswith("FAILED") for result in results.values()))


if __name__ == "__main__":
    sys.exit(main())
