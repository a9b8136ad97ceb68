"""`spreeze doctor`: checks the machine and says what to do."""

from __future__ import annotations

import importlib.util
import os
import shlex
import shutil
import subprocess
import sys
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from spreeze.envs.suites import EXTRAS, advice
from spreeze.machine.cache import cache_folder, cache_note
from spreeze.machine.facts import compiler, cpu_name, detect_machine, shared_memory_problem
from spreeze.settings.arguments import read_arguments
from spreeze.store.files import write_json

TOOLS = {
    "video": "imageio_ffmpeg",
    "dashboard": "starlette",
    "plot": "matplotlib",
    "onnx": "onnxruntime",
    "sweep": "optuna",
    "ray": "ray",
    "wandb": "wandb",
    "trackio": "trackio",
    "docs": "zensical",
}
"""Extras other than environment suites, each with a module that it installs."""


@dataclass(frozen=True, kw_only=True)
class Arguments:
    """Check this machine: cores, memory, shared memory, bytecode, GPUs, compiler, rendering, extras."""

    env: str | None = None
    """Check this environment instead: an id, package.module:EnvClass, or path/file.py:EnvClass. It takes up to a minute."""
    json: str | None = None
    """Write the findings as JSON to this file; - for standard output."""


@dataclass(frozen=True)
class Finding:
    """The result of one check."""

    what: str
    ok: bool
    found: str
    advice: str = ""


def main(arguments: list[str], _started_s: float) -> int:
    """Print the findings. The exit code is 0 if training works on this machine."""
    args = read_arguments(Arguments, arguments, "doctor")
    if args.env is not None:
        return _check_env(args.env, args.json)
    findings = examine()
    if args.json is not None:
        write_json([vars(finding) for finding in findings], args.json)
    if args.json != "-":
        table = Table.grid(padding=(0, 2))
        for f in findings:
            mark = "[green]ok[/green]" if f.ok else "[yellow]--[/yellow]"
            advice = f"\n[yellow]{escape(f.advice)}[/yellow]" if f.advice else ""
            table.add_row(mark, f.what, escape(f.found) + advice)
        Console(highlight=False).print(table)
    return 0 if all(f.ok for f in findings if f.what in ("processes", "memory", "torch")) else 1


def _check_env(env: str, json: str | None) -> int:
    """Print what is wrong with an environment. The exit code is 1 if that is a problem for a run."""
    from spreeze.envs.checkup import check_up
    from spreeze.envs.checkup.checks import Grade

    checks = check_up(env, env)
    if json is not None:
        write_json([vars(check) for check in checks], json)
    if json != "-":
        colors = {Grade.OK: "green", Grade.WARNING: "yellow", Grade.PROBLEM: "red"}
        table = Table.grid(padding=(0, 2))
        for c in checks:
            advice = f"\n[yellow]{escape(c.advice)}[/yellow]" if c.advice else ""
            mark = f"[{colors[c.grade]}]{c.grade}[/{colors[c.grade]}]"
            table.add_row(mark, c.what, escape(c.found) + advice)
        Console(highlight=False).print(table)
    return 1 if any(check.grade is Grade.PROBLEM for check in checks) else 0


def examine() -> list[Finding]:
    """Run all checks."""
    machine = detect_machine()
    gib = machine.memory_bytes / 2**30
    reason = shared_memory_problem()
    return [
        Finding("python", sys.version_info >= (3, 11), sys.version.split()[0]),
        Finding("processor", True, f"{cpu_name()}, {machine.cores} usable cores"),
        Finding(
            "memory",
            gib >= 2,
            f"{gib:.1f} GiB free",
            "" if gib >= 2 else "Close other programs: a small run needs about 2 GiB.",
        ),
        Finding(
            "processes",
            reason is None,
            "shared memory works" if reason is None else reason,
            "" if reason is None else "Use --serial: everything else needs shared memory.",
        ),
        _torch(bool(machine.gpus)),
        bytecode("torch"),
        Finding(
            "GPU",
            bool(machine.gpus),
            ", ".join(f"{g.name}, {g.memory_bytes / 2**30:.0f} GiB free" for g in machine.gpus)
            or "none",
            ""
            if machine.gpus
            else "Training works on the CPU. An NVIDIA GPU is many times faster.",
        ),
        Finding(
            "compiler",
            compiler() is not None,
            compiler() or "none",
            ""
            if compiler()
            else "For faster updates on the CPU, install g++ (Debian: apt install g++).",
        ),
        Finding("cache", cache_note() is None, _cache(), cache_note() or ""),
        _rendering(),
        *(_extra(extra, module) for extra, module in (EXTRAS | TOOLS).items()),
    ]


def _torch(gpu_present: bool) -> Finding:
    try:
        found = version("torch")
    except PackageNotFoundError:
        return Finding("torch", False, "not installed", "pip install torch")
    if not gpu_present:
        return Finding("torch", True, found)
    # In a separate process, because a broken driver can crash the one that asks.
    code = "import torch; print(int(torch.cuda.is_available()))"
    answer = subprocess.run(
        [sys.executable, "-P", "-c", code], capture_output=True, text=True, check=False
    )
    sees = answer.stdout.strip() == "1"
    return Finding(
        "torch",
        sees,
        f"{found}, {'sees' if sees else 'does not see'} the GPU",
        "" if sees else "Install a CUDA build of torch, or update the GPU driver.",
    )


def bytecode(package: str) -> Finding:
    """Whether Python keeps the bytecode of a package, or compiles it at every start."""
    spec = importlib.util.find_spec(package)
    if spec is None or spec.cached is None or spec.origin is None:
        return Finding("bytecode", True, f"{package} is not installed")
    folder = Path(spec.cached).parent
    if Path(spec.cached).exists():
        return Finding("bytecode", True, f"{package} is compiled")
    writable = os.access(next(p for p in (folder, *folder.parents) if p.exists()), os.W_OK)
    if writable and not sys.dont_write_bytecode:
        return Finding("bytecode", True, f"{package} will be compiled by the first run")
    if writable:
        sources = shlex.quote(str(Path(spec.origin).parent))
        advice = (
            f"Unset PYTHONDONTWRITEBYTECODE, or run: {sys.executable} -m compileall -q {sources}"
        )
    else:
        advice = "Set PYTHONPYCACHEPREFIX to a writable folder."
    what = f"Python compiles {package} at every start, which takes about 2 s"
    return Finding("bytecode", False, what, advice)


def _rendering() -> Finding:
    if os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"):
        return Finding("rendering", True, "a display is available")
    libraries = [name for name in ("EGL", "OSMesa") if _library(name)]
    if libraries:
        return Finding(
            "rendering", True, f"no display; {' and '.join(libraries)} can render without one"
        )
    return Finding(
        "rendering",
        False,
        "no display, no EGL, no OSMesa",
        "Training works without them. For videos (Debian): apt install libegl1 libgl1",
    )


def _cache() -> str:
    try:
        return str(cache_folder())
    except OSError:
        return "none"


def _library(name: str) -> bool:
    import ctypes.util

    return ctypes.util.find_library(name) is not None or shutil.which(name) is not None


def _extra(extra: str, module: str) -> Finding:
    found = importlib.util.find_spec(module) is not None
    return Finding(
        f"extra {extra}",
        found,
        "installed" if found else "not installed",
        "" if found else advice(extra),
    )
