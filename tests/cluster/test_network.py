"""Ray nodes on hosts of their own, behind a network that the test makes slow, lossy, and cuts."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("ray", reason='needs pip install "spreeze[ray]"; make suites has it')

from ray_runs import QUICK, Train, processes, token_environment, wait_until
from slow_network import HEAD, address, missing

TESTS = Path(__file__).parents[1]
PORT = 6389
pytestmark = [
    pytest.mark.cluster,
    pytest.mark.timeout(400),
    pytest.mark.skipif(missing() is not None, reason=str(missing())),
]


class Hosts:
    """A head on this machine, and a node on each of two hosts."""

    def __init__(self, folder: Path) -> None:
        self.environment = token_environment()
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        command = [sys.executable, str(TESTS / "slow_network.py"), "2"]
        self.network = subprocess.Popen(command, text=True, **pipes)  # type: ignore[call-overload]
        assert self.network.stdout.readline() == "ready\n"
        self.folder = folder
        self.nodes: list[subprocess.Popen[bytes]] = []
        head = ["--head", "--node-ip-address", HEAD, "--port", str(PORT), "--num-cpus", "0"]
        self._ray([], *head, "--include-dashboard=false")
        for i in (1, 2):
            self.start(i)

    def start(self, host: int) -> None:
        joins = ["--address", f"{HEAD}:{PORT}", "--node-ip-address", address(host)]
        self._ray(["ip", "netns", "exec", f"spz{host}"], *joins, "--num-cpus", "1")

    def _ray(self, where: list[str], *arguments: str) -> None:
        ray = str(Path(sys.executable).with_name("ray"))
        file = self.folder / f"ray-{len(self.nodes)}"
        with open(file, "wb") as log:
            self.nodes.append(
                subprocess.Popen(
                    [*where, ray, "start", *arguments, "--block"],
                    env=self.environment,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
            )
        wait_until(lambda: "Ray runtime started" in file.read_text(), f"see {file}", 90)

    def do(self, command: str) -> None:
        self.network.stdin.write(f"{command}\n")
        self.network.stdin.flush()
        assert self.network.stdout.readline() == "done\n"

    def close(self) -> None:
        for node in self.nodes:
            os.killpg(node.pid, signal.SIGTERM)
        for node in self.nodes:
            try:
                node.wait(15)
            except subprocess.TimeoutExpired:
                os.killpg(node.pid, signal.SIGKILL)
                node.wait()
        self.network.stdin.close()
        self.network.stdout.close()
        self.network.wait(30)


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[Hosts]:
    hosts = Hosts(tmp_path)
    yield hosts
    hosts.close()


@pytest.mark.fault("F80")
def test_a_slow_lossy_and_cut_network_stops_nobody(hosts: Hosts, tmp_path: Path) -> None:
    run = Train(
        tmp_path,
        hosts.environment,
        *QUICK,
        *("--backend", "ray", "--ray.address", f"{HEAD}:{PORT}", "--name", "run"),
        *("--ray.max-lag-s", "5", "--ray.grace-s", "60"),
    )

    def moves(limit_s: float = 60.0) -> None:
        """Updates and env steps go on."""
        before = run.status["progress"]

        def has_moved() -> bool:
            now = run.status["progress"]
            return bool(
                now["updates"] > before["updates"] + 100
                and now["env_steps"] > before["env_steps"] + 1000
            )

        wait_until(has_moved, f"the run goes on; {run.output}", limit_s)

    try:
        run.await_nodes(2)
        for trouble in ("delay 0.5", "loss 0.05"):
            hosts.do(trouble)
            moves()
        hosts.do("loss 0")
        hosts.do("rate 125000")  # 1 Mbit/s
        moves()
        hosts.do("rate 0")
        hosts.do("delay 0")
        hosts.do("cut")
        cut_s = time.monotonic()
        while time.monotonic() - cut_s < 30:
            moves()
        hosts.do("heal")
        for i in (
            1,
            2,
        ):  # Ray ends nodes that were cut off for too long; an operator's service starts them again
            if hosts.nodes[i].poll() is not None:
                hosts.start(i)
        wait_until(lambda: len(run.sampling) == 2, f"both sample again; {run.output}", 150)
        before = {node["name"]: node["env_steps"] for node in run.sampling}
        wait_until(
            lambda: all(node["env_steps"] > before[node["name"]] for node in run.sampling),
            f"both send again; {before}",
        )
        summary = run.stop()
        assert summary["cluster"]["rows_refused"] == 0
        assert summary["restarts"] == 0
    finally:
        run.close()
    wait_until(lambda: not processes("ray::Outpost"), "outposts end with the run", 90)
