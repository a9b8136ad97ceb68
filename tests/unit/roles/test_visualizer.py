"""Visualizer: which videos it records, and their titles."""

from __future__ import annotations

import errno
import os
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from spreeze.envs.inspect import inspect_env
from spreeze.envs.rendering import view_without_display
from spreeze.policy import Policy
from spreeze.roles import visualizer
from spreeze.roles.context import Context
from spreeze.settings.defaults import config_with, default_config
from spreeze.store.checkpoint import save_best
from spreeze.store.rundir import RunDir

# The child that is forked to try the first picture leaves by os._exit: threads of other tests do not matter.
pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")


def context(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A visualizer's context in a run that has a best policy."""
    for name in ("SDL_VIDEODRIVER", "SDL_AUDIODRIVER", "PYGAME_HIDE_SUPPORT_PROMPT", "MUJOCO_GL"):
        monkeypatch.setenv(name, os.environ.get(name, ""))  # a view sets them
    run, spec = RunDir(folder), inspect_env("Pendulum-v1", "Pendulum-v1")
    run.live.mkdir()
    knobs = {"algo.hidden": (4,), "visualizer.frames_hz": 3.0, "visualizer.video_s": 1.0}
    config = config_with(default_config("sac", "Pendulum-v1"), knobs)
    policy = Policy(spec, config.hyper.policy_form(spec))
    data = {"config": {"policy": policy.describe()}}
    assert save_best(run.checkpoints, 12, {"policy": policy.named()}, data)
    context = SimpleNamespace(
        run=run,
        spec=spec,
        config=config,
        counters={"frames": 0, "videos": 0, "lines_lost": 0},
        control=SimpleNamespace(evaluator={"best_return": -150.0}),
        weights=None,
        seed=lambda: [0],
        now=lambda: 0.0,
    )
    context.count_loss = partial(Context.count_loss, context)
    return context


@pytest.mark.parametrize(("seconds", "videos"), [(60.0, ["last.mp4"]), (0.0, [])])
def test_the_best_policy_is_recorded_at_the_end_if_there_is_time(
    seconds: float,
    videos: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ctx = context(tmp_path, monkeypatch)
    run = ctx.run
    monkeypatch.setattr(visualizer, "LAST_VIDEO_S", seconds)
    view = view_without_display("Pendulum-v1", ctx.spec)
    try:
        visualizer.VideoRecorder(ctx, view).record_last()
    finally:
        view.close()
    assert [path.name for path in run.videos.glob("*")] == videos
    assert ctx.counters["videos"] == len(videos)
    for video in videos:
        assert b"best policy, evaluated -150.0" in (run.videos / video).read_bytes()


@pytest.mark.fault("F64")
def test_pictures_are_dropped_on_a_full_disk_and_come_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    ctx = context(tmp_path, monkeypatch)
    view = view_without_display("Pendulum-v1", ctx.spec)
    try:
        recorder = visualizer.VideoRecorder(ctx, view)
        view.reset(0)
        with monkeypatch.context() as patch:
            patch.setattr(visualizer, "replace_bytes", full)
            patch.setattr(visualizer.VideoWriter, "add", full)
            recorder._publish(view.frame(), 12)
            recorder.record_last()
        assert ctx.counters == {"frames": 0, "videos": 0, "lines_lost": 2}
        recorder._publish(view.frame(), 12)
    finally:
        view.close()
    assert (ctx.run.live / "frame.jpg").exists()
    assert ctx.counters["frames"] == 1
