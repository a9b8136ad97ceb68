"""Visualizer: which videos it records, and their titles."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterator
from contextlib import nullcontext
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
from spreeze.roles.visualizer import VIDEO_EVERY_S, VideoRecorder
from spreeze.settings.defaults import config_with, default_config
from spreeze.store.checkpoint import save_best
from spreeze.store.rundir import RunDir
from spreeze.store.trace import no_mark
from spreeze.wires.weights import Stamp

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
        weights=SimpleNamespace(fetch=lambda _, version: Stamp(1, 20) if version == 0 else None),
        seed=lambda: [0],
        now=lambda: 0.0,
        mark=no_mark,
        _counting=nullcontext(),
        job=SimpleNamespace(role="visualizer"),
        document=lambda _: SimpleNamespace(refresh=lambda: False),
        make_policy=partial(Policy, spec, policy.form),
    )
    context.count_loss = partial(Context.count_loss, context)
    return context


@pytest.fixture
def recorder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[VideoRecorder]:
    """A visualizer that has the first policy and has recorded nothing yet."""
    ctx = context(tmp_path, monkeypatch)
    view = view_without_display("Pendulum-v1", ctx.spec)
    try:
        recorder = VideoRecorder(ctx, view)
        recorder.keep_first_policy()
        yield recorder
    finally:
        view.close()


def titles(recorder: VideoRecorder) -> dict[str, str]:
    """The name in the title of each video."""
    found = {}
    for path in recorder.ctx.run.videos.glob("*"):
        match = re.search(rb"(first|last|best) policy(, evaluated -150.0)?", path.read_bytes())
        assert match is not None
        found[path.name] = match.group().decode()
    return found


def test_first_best_and_last_policy_are_recorded_at_the_end_of_a_short_run(
    recorder: VideoRecorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(visualizer, "LAST_VIDEOS_S", 60.0)
    recorder.record_last()
    assert titles(recorder) == {
        "first.mp4": "first policy",
        "000000012-best.mp4": "best policy, evaluated -150.0",
        "last.mp4": "last policy",
    }
    assert recorder.ctx.counters["videos"] == 3


def test_without_time_at_the_end_there_is_no_video(
    recorder: VideoRecorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(visualizer, "LAST_VIDEOS_S", 0.0)
    recorder.record_last()
    assert titles(recorder) == {}


def test_what_has_a_video_is_not_recorded_again_at_the_end(recorder: VideoRecorder) -> None:
    recorder.ctx.control.evaluator |= {"evaluations": 1, "return_mean": -1000.0}
    assert list(recorder.record_if_due()), "the first policy, once there is an evaluation"
    recorder._recorded_s = -VIDEO_EVERY_S
    assert list(recorder.record_if_due()), "a policy that is much better than the first evaluation"
    done = {path.name: path.stat().st_mtime_ns for path in recorder.ctx.run.videos.glob("*")}
    assert sorted(done) == ["000000012-best.mp4", "first.mp4"]
    recorder.record_last()
    after = {path.name: path.stat().st_mtime_ns for path in recorder.ctx.run.videos.glob("*")}
    assert after.pop("last.mp4")
    assert after == done


def test_a_first_video_that_the_end_interrupts_is_recorded_again(recorder: VideoRecorder) -> None:
    recorder.ctx.control.evaluator |= {"evaluations": 1, "return_mean": -1000.0}
    recording = recorder.record_if_due()
    next(recording)
    recording.close()  # type: ignore[attr-defined]
    assert titles(recorder) == {}
    recorder.record_last()
    assert "first.mp4" in titles(recorder)


@pytest.mark.fault("F64")
def test_pictures_are_dropped_on_a_full_disk_and_come_back(
    recorder: VideoRecorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    ctx, view = recorder.ctx, recorder.view
    view.reset(0)
    with monkeypatch.context() as patch:
        patch.setattr(visualizer, "replace_bytes", full)
        patch.setattr(visualizer.VideoWriter, "add", full)
        recorder._publish(view.frame(), 12)
        recorder.record_last()
    assert ctx.counters == {"frames": 0, "videos": 0, "lines_lost": 4}
    recorder._publish(view.frame(), 12)
    assert (ctx.run.live / "frame.jpg").exists()
    assert ctx.counters["frames"] == 1
