"""The page, the visualizer and trackers: killed, broken or missing, training does not notice."""

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
import spreeze
from spreeze.rundir import RunDir
from user_runs import all_gone, learning, read, training, wait_for


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


def test_killed_onlookers_come_back_and_the_token_stays_secret(tmp_path: Path) -> None:
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
    assert all_gone(pids | {str(child.pid): child.pid for child in family})


def test_an_environment_that_cannot_be_drawn_is_trained_and_the_reason_said(runs: str) -> None:
    run = spreeze.train(fakes.ReachEnv, runs=runs, time="6s", **{"visualizer.draw": "on"})
    assert run.summary["restarts"] == 0
    assert "does not take render_mode" in RunDir(run.path).read("status")["visualizer"]["problem"]
    assert "no pictures" in (run.path / "logs" / "visualizer-0.log").read_text()


def test_a_visualizer_that_breaks_again_and_again_is_given_up(
    runs: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from spreeze import launch

    monkeypatch.setattr(launch, "RESTART_DELAYS_S", (0.0,))
    run = spreeze.train(fakes.breaks_when_drawn, runs=runs, time="8s", **{"visualizer.draw": "on"})
    assert run.summary["state"] == "finished"
    assert run.summary["updates"] > 0
    warnings = RunDir(run.path).read("status")["warnings"]
    assert any("visualizer-0 was given up" in text for text in warnings)
