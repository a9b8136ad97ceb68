"""Runs on Ray nodes, each in a separate process, as the tests see them."""

from __future__ import annotations

import json
import os
import re
import secrets
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

HERE = Path(__file__).parent
ENV = f"{HERE / 'fakes.py'}:ReachEnv"
QUICK = ["--device", "cpu", "--learner.no-compile", "--no-dashboard", "--algo.hidden", "16", "16"]
QUICK += ["--sampler.processes", "1", "--ray.grace-s", "5", "--checkpoint.every-s", "2"]


def token_environment() -> dict[str, str]:
    """Of a process that may use the cluster that is started with the same one."""
    token = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
    return os.environ | token | {"RAY_USAGE_STATS_ENABLED": "0"}


def wait_until(condition: Callable[[], Any], what: str, limit_s: float = 60.0) -> Any:
    """The first true value of the condition."""
    deadline = time.monotonic() + limit_s
    while time.monotonic() < deadline:
        if value := condition():
            return value
        time.sleep(0.1)
    raise AssertionError(f"within {limit_s:.0f} s: {what}")


class Nodes:
    """The process of `ray_nodes.py`."""

    def __init__(self, environment: dict[str, str]) -> None:
        command = [sys.executable, str(HERE / "ray_nodes.py")]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
        self.process = subprocess.Popen(command, env=environment, text=True, **pipes)  # type: ignore[call-overload]

    def do(self, command: str) -> Any:
        self.process.stdin.write(f"{command}\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def close(self) -> None:
        self.process.stdin.close()
        self.process.stdout.close()
        self.process.wait(30)


class Train:
    """A `spreeze train` in the background."""

    def __init__(self, folder: Path, environment: dict[str, str], *arguments: str) -> None:
        self.folder = folder / "run"
        self.log = open(folder / "output", "ab")  # noqa: SIM115
        command = [sys.executable, "-m", "spreeze", "train", ENV]
        self.process = subprocess.Popen(
            [*command, *arguments, "--runs", str(folder)],
            env=environment,
            stdout=self.log,
            stderr=subprocess.STDOUT,
        )

    @property
    def status(self) -> dict[str, Any]:
        try:
            return json.loads((self.folder / "status.json").read_text())  # type: ignore[no-any-return]
        except (OSError, ValueError):
            return {}

    @property
    def sampling(self) -> list[dict[str, Any]]:
        """The nodes that sample now."""
        return [node for node in self.status.get("nodes", ()) if node["state"] == "sampling"]

    @property
    def steps_elsewhere(self) -> int:
        return sum(node["env_steps"] for node in self.status.get("nodes", ()))

    def await_nodes(self, num: int) -> None:
        wait_until(
            lambda: len(self.sampling) == num and all(node["env_steps"] for node in self.sampling),
            f"{num} nodes sample; {self.status.get('nodes')} {self.output}",
            90,
        )

    @property
    def output(self) -> str:
        return Path(self.log.name).read_text()[-3000:]

    def stop(self) -> dict[str, Any]:
        """End it in order; returns the summary."""
        self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(60) == 0, self.output
        return json.loads((self.folder / "summary.json").read_text())  # type: ignore[no-any-return]

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        self.log.close()


def listening(family: psutil.Process) -> set[tuple[str, str]]:
    """The programs of a process and its descendants that listen on the network, each with an address."""
    found = set()
    for process in (family, *family.children(recursive=True)):
        with suppress(psutil.NoSuchProcess):
            name = process.name()
            for socket in process.net_connections("inet"):
                if socket.status == psutil.CONN_LISTEN:
                    found.add((name, socket.laddr.ip.removeprefix("::ffff:")))
    return found


def processes(word: str) -> list[int]:
    """Pids of the processes whose command line has a word."""
    return list(_command_lines(word))


def folders(prefix: str) -> list[Path]:
    """The temporary folders with this beginning whose names are in the command lines of processes."""
    lines = " ".join(_command_lines(prefix).values())
    found = [Path(tempfile.gettempdir()) / name for name in set(re.findall(rf"{prefix}\w+", lines))]
    assert found, f"no process names one: {lines}"
    assert all(folder.is_dir() for folder in found), found
    return found


def _command_lines(word: str) -> dict[int, str]:
    found = {}
    for process in psutil.process_iter(["pid", "cmdline", "status"]):
        line = " ".join(process.info["cmdline"] or ())
        if word in line and process.info["status"] != psutil.STATUS_ZOMBIE:
            found[process.info["pid"]] = line
    return found
