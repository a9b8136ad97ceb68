"""Runs on several Ray nodes of this machine: they come, they are killed, the first one too."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

pytest.importorskip("ray", reason='needs pip install "spreeze[ray]"; make suites has it')

from ray_runs import (
    ENV,
    QUICK,
    Nodes,
    Train,
    folders,
    listening,
    processes,
    token_environment,
    wait_until,
)

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]


class Setting:
    def __init__(self, folder: Path) -> None:
        self.folder, self.environment = folder, token_environment()
        self.nodes = Nodes(self.environment)
        self.trains: list[Train] = []

    def train(self, *arguments: str) -> Train:
        run = Train(self.folder, self.environment, "--backend", "ray", *arguments)
        self.trains.append(run)
        return run

    def close(self) -> None:
        for run in self.trains:
            run.close()
        self.nodes.close()


@pytest.fixture
def setting(tmp_path: Path) -> Iterator[Setting]:
    setting = Setting(tmp_path)
    yield setting
    setting.close()


@pytest.mark.fault("F79")
def test_nodes_join_and_are_killed_and_cost_only_their_own_samplers(setting: Setting) -> None:
    address = setting.nodes.do("start 1 1")
    run = setting.train(*QUICK, "--name", "run", "--ray.address", address)
    run.await_nodes(2)
    setting.nodes.do("kill 1")
    wait_until(lambda: len(run.sampling) == 1, "the loss is noticed", 90)
    left, before = run.sampling[0]["name"], run.status["progress"]["env_steps"]
    wait_until(lambda: run.status["progress"]["env_steps"] > before + 1000, "the others go on")
    assert run.sampling[0]["name"] == left
    setting.nodes.do("add 1")
    run.await_nodes(2)
    left_behind = folders("spreeze-outpost-")
    for outpost in processes("ray::Outpost"):  # they are killed on nodes that live
        psutil.Process(outpost).kill()
    wait_until(lambda: len(run.sampling) == 0, "the outposts' ends are noticed")
    wait_until(lambda: not any(f.exists() for f in left_behind), "their folders are removed")
    run.await_nodes(2)
    summary = run.stop()
    found = summary["cluster"]
    assert found["nodes_lost"] >= 2
    assert 0 < found["rows"] <= found["env_steps"] < summary["env_steps"]
    assert found["rows_refused"] == 0
    assert summary["restarts"] == 0, "no process of the learner's machine was touched"
    wait_until(lambda: not processes("ray::Outpost"), "outposts end with the run")


@pytest.mark.fault("F82")
def test_a_dead_head_ends_all_outposts_and_the_run_resumes_from_its_checkpoint(
    setting: Setting,
) -> None:
    address = setting.nodes.do("start 1")
    run = setting.train(*QUICK, "--name", "run", "--ray.address", address)
    run.await_nodes(1)
    wait_until((run.folder / "checkpoints" / "last").exists, "a checkpoint")
    samplers, left_behind = processes(" spreeze-outpost-"), folders("spreeze-outpost-")
    assert samplers
    run.process.kill()  # the machine is lost: supervisor, relay, learner and Ray's head
    setting.nodes.do("kill 0")
    wait_until(
        lambda: not any(psutil.pid_exists(pid) for pid in samplers), "no sampler is left", 90
    )
    wait_until(lambda: not any(f.exists() for f in left_behind), "their folders are removed")
    setting.nodes.close()
    steps = run.status["progress"]["env_steps"]
    setting.nodes = Nodes(setting.environment)
    address = setting.nodes.do("start 1")
    again = setting.train("--resume", str(run.folder), "--name", "again", "--ray.address", address)
    again.folder = setting.folder / "again"
    again.await_nodes(1)
    assert again.status["progress"]["env_steps"] > steps / 4, "it counts on from its checkpoint"
    again.stop()


@pytest.mark.fault("S16")
def test_without_the_cluster_s_token_nothing_starts(setting: Setting, tmp_path: Path) -> None:
    address = setting.nodes.do("start 1")
    wrong = token_environment()
    for environment, said in (
        ({**wrong, "RAY_AUTH_MODE": "disabled"}, "RAY_AUTH_MODE=disabled"),
        ({**wrong, "RAY_AUTH_TOKEN": "", "HOME": str(tmp_path)}, "there is no token"),
        (wrong, "no connection to this cluster"),
    ):
        command = [sys.executable, "-m", "spreeze", "train", ENV, *QUICK, "--runs", str(tmp_path)]
        ended = subprocess.run(
            [*command, "--backend", "ray", "--ray.address", address, "--time", "5s"],
            env=environment,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert ended.returncode == 2, ended.stdout + ended.stderr
        assert said in ended.stderr
        assert "Traceback" not in ended.stderr
    assert not list(tmp_path.glob("*/config.json"))


@pytest.mark.fault("S16")
def test_a_cluster_at_another_interface_is_refused(setting: Setting, tmp_path: Path) -> None:
    address = setting.nodes.do("start 1")
    found = listening(psutil.Process(setting.nodes.process.pid))
    everywhere = {name for name, where in found if where in ("::", "0.0.0.0")}
    assert everywhere == {"gcs_server", "raylet"}, "what SECURITY.md names"
    own, _, _ = address.rpartition(":")
    assert {where for _, where in found} == {"::", own}, found
    run = setting.train(*QUICK, "--ray.address", address, "--ray.interface", "127.77.0.1")
    assert run.process.wait(120) == 2, run.output
    assert "ray start --node-ip-address 127.77.0.1" in run.output
    assert "Traceback" not in run.output
    assert not list(tmp_path.glob("*/config.json"))


GATED = """
from torch import nn

class Gated(nn.Module):
    def __init__(self, inputs, outputs):
        super().__init__()
        self.first, self.gate = nn.Linear(inputs, 8), nn.Linear(inputs, 8)
        self.last = nn.Linear(8, outputs)

    def forward(self, obs):
        return self.last(self.first(obs) * self.gate(obs).sigmoid())
"""
OWN = """
from dataclasses import dataclass
from spreeze.algos import Entry, sac
import gated_layers_of_mine

@dataclass(frozen=True, kw_only=True)
class Config(sac.SACConfig):
    def policy_module(self, inputs, outputs):
        return gated_layers_of_mine.Gated(inputs, outputs)

ENTRY = Entry(Config, sac.build, "SAC with a gated policy")
"""


def test_a_policy_of_the_user_s_acts_on_nodes_that_have_its_code(setting: Setting) -> None:
    (setting.folder / "own.py").write_text(OWN)
    layers = setting.folder / "gated_layers_of_mine.py"
    layers.write_text(GATED)
    address = setting.nodes.do("start 1")
    own = ["--algo", f"{setting.folder / 'own.py'}:ENTRY", "--ray.evaluate", "nodes"]
    run = setting.train(*QUICK, *own, "--name", "run", "--ray.address", address)
    run.await_nodes(1)
    wait_until(lambda: run.status["progress"]["best_return"] is not None, "an evaluation")
    assert "your module acts through torch" in run.output
    layers.unlink()
    shutil.rmtree(setting.folder / "__pycache__", ignore_errors=True)
    setting.nodes.do("add 1")

    def states() -> dict[str, str]:
        return {node["state"]: node["why"] for node in run.status["nodes"]}

    wait_until(lambda: "refused" in states(), f"the new node is refused; {run.output}")
    assert "No module named 'gated_layers_of_mine'. Your own code must be" in states()["refused"]
    summary = run.stop()
    assert summary["cluster"]["rows"] > 0
    assert summary["cluster"]["evaluations"] > 0
    assert "Traceback" not in (run.folder / "logs" / "relay-0.log").read_text()


def test_one_machine_is_enough(tmp_path: Path) -> None:
    arguments = ["--backend", "ray", "--name", "run", "--ray.evaluate", "nodes"]
    run = Train(tmp_path, token_environment(), *QUICK, *arguments)
    try:
        run.await_nodes(1)
        wait_until(lambda: run.status["progress"]["best_return"] is not None, "an evaluation")
        found = listening(psutil.Process(run.process.pid))
        assert {"gcs_server", "raylet"} <= {name for name, _ in found}, "Ray is among them"
        assert {address for _, address in found} == {"127.0.0.1"}, found
        best = run.status["progress"]["best_return"]
        wait_until(lambda: run.status["progress"]["best_return"] > best, "a better one")
        summary = run.stop()
    finally:
        run.close()
    assert summary["cluster"]["rows"] > 0
    assert summary["cluster"]["evaluations"] > 0
    assert json.loads((run.folder / "config.json").read_text())["config"]["backend"] == "ray"
    wait_until(lambda: not processes("/spreeze-ray-"), "Ray ends with the run")


@pytest.mark.fault("F82")
def test_a_killed_run_leaves_no_ray_behind(tmp_path: Path) -> None:
    run = Train(tmp_path, token_environment(), *QUICK, "--backend", "ray", "--name", "run")
    try:
        run.await_nodes(1)
        left_behind = folders("spreeze-ray-")
    finally:
        run.close()
    wait_until(lambda: not processes("/spreeze-ray-"), "Ray ends with the run")
    wait_until(lambda: not any(f.exists() for f in left_behind), "so does its folder")
