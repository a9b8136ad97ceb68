"""Observers (the page, the visualizer, trackers): killed, broken or missing, training continues."""

from __future__ import annotations

import http.client
import json
import os
import signal
import stat
from pathlib import Path
from typing import Any

import psutil
import pytest

import fakes
from spreeze.run import launch, restarts
from spreeze.run.snapshot import Snapshot
from spreeze.settings.defaults import config_with, default_config
from user_runs import learning, read, still_there, training, wait_for


def ask(port: int, path: str, token: str) -> Any:
    """What the page's server answers."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        connection.request("GET", path, headers={"Authorization": f"Bearer {token}"})
        answer = connection.getresponse()
        assert answer.status == 200
        return answer.read()
    except (OSError, http.client.HTTPException):
        return None
    finally:
        connection.close()


@pytest.mark.fault("F10")
@pytest.mark.fault("F77")
@pytest.mark.fault("S02")
@pytest.mark.exhaustive
def test_killed_observers_come_back_and_the_token_stays_secret(tmp_path: Path) -> None:
    run = tmp_path / "runs" / "r"
    with training(tmp_path, "Pendulum-v1") as process:
        pids = learning(tmp_path)
        url = read(tmp_path, "status")["dashboard"]["url"]
        port = int(url.rstrip("/").rpartition(":")[2])
        file = run / "dashboard.token"
        token = file.read_text().strip()
        assert len(token) >= 22
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        assert token not in url
        shown = json.loads(wait_for(lambda: ask(port, "/api/runs", token)))
        assert shown["first"] == shown["runs"][0]["id"]
        frame = run / "live" / "frame.jpg"
        wait_for(frame.exists)
        for name in ("dashboard", "visualizer-0"):
            os.kill(read(tmp_path, "status")["pids"][name], signal.SIGKILL)
            wait_for(lambda n=name: read(tmp_path, "status")["pids"].get(n, pids[n]) != pids[n])  # type: ignore[misc]
        before, drawn = read(tmp_path, "status")["progress"], frame.stat().st_mtime_ns
        assert wait_for(lambda: ask(port, "/api/runs", token)), "the same address, the same token"
        wait_for(lambda: frame.stat().st_mtime_ns != drawn)
        wait_for(lambda: read(tmp_path, "status")["progress"]["updates"] > before["updates"] + 100)
        family = psutil.Process(process.pid).children(recursive=True)
        lines = [
            word for child in (psutil.Process(process.pid), *family) for word in child.cmdline()
        ]
        assert not [word for word in lines if token in word]
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=15)
    assert token not in out + err
    assert url in err, "the address is on the screen"
    assert not file.exists()
    assert not [f for f in run.rglob("*") if f.is_file() and token.encode() in f.read_bytes()]
    assert read(tmp_path, "summary")["restarts"] == 2
    events = (run / "metrics" / "supervisor-0.jsonl").read_text()
    assert "dashboard was ended by signal 9 and started again" in events
    assert not still_there(pids | {str(child.pid): child.pid for child in family})


def test_an_environment_that_cannot_be_drawn_is_trained_and_the_reason_said(tmp_path: Path) -> None:
    with training(tmp_path, "fakes:ReachEnv") as process:
        view = wait_for(lambda: read(tmp_path, "status")["visualizer"])
        assert "does not take render_mode" in view["problem"]
        wait_for(lambda: "visualizer-0" not in read(tmp_path, "status")["pids"])
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=15)
    assert read(tmp_path, "summary")["restarts"] == 0, "there is nothing to start again for"
    log = tmp_path / "runs" / "r" / "logs" / "visualizer-0.log"
    assert "no pictures" in log.read_text()


@pytest.mark.exhaustive
def test_a_visualizer_that_breaks_again_and_again_is_given_up(
    runs: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(restarts, "DELAYS_S", (0.0,))
    given_up: list[str] = []

    def show(snap: Snapshot, *_: Any) -> None:
        found = [text for text in snap.warnings if "visualizer-0 was given up" in text]
        if found and not given_up:
            given_up.extend(found)
            os.kill(os.getpid(), signal.SIGINT)

    knobs = {"runs": runs, "time": "60s", "dashboard": False, "visualizer.draw": "on"}
    config = config_with(default_config(env="fakes"), knobs)
    run = launch.launch(config, fakes.breaks_when_drawn, show)
    assert "visualizer-0.log" in given_up[0]
    assert run.summary["state"] == "interrupted"
    assert run.summary["updates"] > 0
