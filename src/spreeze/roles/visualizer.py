"""Visualizer: draws the newest policy for the live page, and records videos at milestones.

Reads: weights, control, the `best` checkpoint.   Writes: live/, videos/, its control counters, metrics.
Owns: one environment that renders. Training does not depend on it: it runs at the lowest priority.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from spreeze.envs.inspect import evaluation_env
from spreeze.envs.rendering import Frame, NoPicture, View, needs_video_extra, view_without_display
from spreeze.errors import DamagedFile
from spreeze.faults import fault_point
from spreeze.machine.affinity import run_in_background
from spreeze.policy import Policy
from spreeze.policy.load import load_policy
from spreeze.roles.context import Context
from spreeze.roles.env_calls import EnvCallsReader
from spreeze.settings.config import resolved
from spreeze.store.files import replace_bytes, write_atomic
from spreeze.store.trace import Activity
from spreeze.store.video import VideoWriter, captioned, jpeg
from spreeze.wires.weights import WeightsReader

POLL_S = 0.1
VIDEO_HZ = 20.0
VIDEO_LIMIT_S, MIN_FRAMES = 10.0, 10
"""A video gets the frames that can be drawn in this time, because training needs the cores; with fewer
than the minimum it is not kept."""
LAST_VIDEOS_S = 3.0
"""The same limit for all videos at the end together: the run is over and the user is waiting."""
BETTER_BY = 0.1
"""A new best policy gets a video if it improves on the last one by this share of all progress so far ..."""
VIDEO_EVERY_S = 30.0
"""... and if the last video is at least this old."""
KEPT_VIDEOS = 8


def run(ctx: Context) -> Iterator[None]:
    """One unit of work is one picture, or waiting for the next."""
    run_in_background()
    while ctx.control.learner["first_update_s"] == 0:  # while a run starts, it needs every core
        ctx.wait(POLL_S)
        yield
    ctx.run.live.mkdir(exist_ok=True)
    try:
        if missing := needs_video_extra():
            raise NoPicture(missing)
        env = evaluation_env(ctx.job.env, ctx.spec)
        view = view_without_display(env, ctx.spec, ctx.env_guard())
    except NoPicture as problem:
        # Not an error: training continues, and the page says what to install.
        ctx.note(f"no pictures: {problem}")
        write_atomic(ctx.run.live / "view.json", {"problem": str(problem)})
        return
    recorder = VideoRecorder(ctx, view)
    try:
        recorder.keep_first_policy()
        while True:
            recorder.show_live()
            yield
            yield from recorder.record_if_due()
    finally:
        recorder.record_last()
        view.close()


class Subject(NamedTuple):
    """The policy that a video shows."""

    policy: Policy
    updates: int
    name: str
    file: str
    """Name of the video's file without its ending."""
    evaluated: float | None = None
    """Its return in the evaluation, where it has one."""

    def title(self, env_id: str, episode_return: float) -> str:
        """The title of a video in which it got this return."""
        evaluated = f", evaluated {self.evaluated:.1f}" if self.evaluated is not None else ""
        return f"{env_id}: return {episode_return:.1f} ({self.name}{evaluated})"


class VideoRecorder:
    """The view, the policy it shows, and what has been recorded so far."""

    def __init__(self, ctx: Context, view: View) -> None:
        """Nothing is drawn yet."""
        self.ctx, self.view = ctx, view
        self.policy = ctx.make_policy()
        self._weights = WeightsReader(ctx.weights, self.policy.vector)
        self._calls = EnvCallsReader(ctx)
        self._first: Subject | None = None
        """The first policy, until its video is recorded."""
        for draft in ctx.run.videos.glob(".*.mp4"):
            draft.unlink(missing_ok=True)  # left by a visualizer that was killed
        self._seeds = np.random.default_rng(ctx.seed()[0])
        self._frames_hz = resolved(ctx.config.visualizer.frames_hz)
        self._next_frame_s = 0.0
        self._first_return = self._recorded_return = float("nan")
        """Return of the first evaluation, and of the policy that was recorded last."""
        self._recorded_s = -VIDEO_EVERY_S

    def show_live(self) -> None:
        """Play the newest policy for as many steps as time has passed, and publish the picture."""
        ctx, view = self.ctx, self.view
        self._weights.refresh()
        self._calls.pass_on(view.take_calls)
        if view.ended:
            view.reset(int(self._seeds.integers(2**31)))
        self._play(self.policy, self._frames_hz)
        self._publish(view.frame(), self._weights.stamp.updates)
        ctx.wait(max(0.0, self._next_frame_s - ctx.now()))

    def _play(self, policy: Policy, frames_hz: float) -> None:
        """Play the steps between two frames, or to the end of the episode."""
        self.ctx.mark(Activity.DRAW)
        for _ in range(self._steps_per_frame(frames_hz)):
            self.view.step(policy.greedy_action)
            if self.view.ended:
                break

    def _steps_per_frame(self, frames_hz: float) -> int:
        return max(1, round(self.view.steps_hz / frames_hz))

    def _publish(self, frame: Frame, updates: int, filming: str | None = None) -> None:
        """Make this the live picture. `filming` names the policy if the picture is part of a video."""
        ctx, view = self.ctx, self.view
        fault_point("visualizer.drawn")
        shown = {"frame": int(ctx.counters["frames"]) + 1, "time_s": round(ctx.now(), 3)}
        state = {"updates": updates, "return": view.total, "filming": filming}
        try:
            replace_bytes(ctx.run.live / "frame.jpg", jpeg(frame))
            ctx.counters["frames"] += 1
            write_atomic(ctx.run.live / "view.json", shown | state)
        except OSError:  # such as a full disk; the next one may work
            ctx.count_loss()
        period_s = 1 / self._frames_hz
        self._next_frame_s = max(self._next_frame_s, ctx.now() - period_s) + period_s

    def keep_first_policy(self) -> None:
        """Keep the first policy; its video is recorded after the first evaluation."""
        self._weights.refresh()
        if self.ctx.counters["frames"] == 0:  # else this visualizer was restarted
            first = self.policy.copy()
            self._first = Subject(first, self._weights.stamp.updates, "first policy", "first")

    def record_if_due(self) -> Iterator[None]:
        """Record the first policy; later the best one, when it is clearly better than the last recorded."""
        evaluator, now = self.ctx.control.evaluator, self.ctx.now()
        wanted = self.ctx.config.visualizer.video_s > 0
        if not wanted or evaluator["evaluations"] == 0 or now - self._recorded_s < VIDEO_EVERY_S:
            return
        if self._first is not None:
            yield from self._record(self._first, VIDEO_LIMIT_S)
            self._first = None  # not before: the run may end while it is being recorded
            return
        best = float(evaluator["best_return"])
        if np.isnan(self._recorded_return):
            self._first_return = self._recorded_return = float(evaluator["return_mean"])
        if best - self._recorded_return > BETTER_BY * abs(best - self._first_return):
            if (subject := self._best()) is None:
                return
            yield from self._record(subject, VIDEO_LIMIT_S)
            self._recorded_return = best
            for old in sorted(self.ctx.run.videos.glob("*-best.mp4"))[:-KEPT_VIDEOS]:
                old.unlink(missing_ok=True)

    def record_last(self) -> None:
        """At the end of the run, record what has no video yet: the newest policy, the best and the first."""
        if self.ctx.config.visualizer.video_s == 0:
            return
        self._weights.refresh()
        newest = Subject(self.policy, self._weights.stamp.updates, "last policy", "last")
        subjects = [newest, self._best(), self._first]
        due = [subject for subject in subjects if subject is not None]
        until_s = time.monotonic() + LAST_VIDEOS_S
        for number, subject in enumerate(due):
            limit_s = (until_s - time.monotonic()) / (len(due) - number)
            for _ in self._record(subject, limit_s):
                pass

    def _best(self) -> Subject | None:
        """The best policy, if it has no video yet."""
        try:
            checkpoint = (self.ctx.run.checkpoints / "best").resolve(strict=True)
            if self._video(checkpoint.name).exists():
                return None
            policy = load_policy(checkpoint, self.ctx.config.hyper.policy_module)
        except (OSError, DamagedFile):
            return None  # there is none yet, or the evaluator has just replaced it by a better one
        updates = int(checkpoint.name.partition("-")[0])
        evaluated = float(self.ctx.control.evaluator["best_return"])
        return Subject(policy, updates, "best policy", checkpoint.name, evaluated)

    def _video(self, file: str) -> Path:
        return self.ctx.run.videos / f"{file}.mp4"

    def _record(self, subject: Subject, limit_s: float) -> Iterator[None]:
        """Record one episode from its start. Frames so far are kept if it must stop early."""
        view, began_s = self.view, time.monotonic()
        stride = self._steps_per_frame(VIDEO_HZ)
        num_frames = int(self.ctx.config.visualizer.video_s * view.steps_hz / stride)
        video = VideoWriter(self._video(subject.file), view.steps_hz / stride)
        title = None
        view.reset(0)
        try:
            for _ in range(max(1, num_frames)):
                self._play(subject.policy, VIDEO_HZ)
                late = time.monotonic() - began_s > limit_s
                if view.ended or late:  # after the end, the picture is of the next episode
                    break
                frame = view.frame()
                video.add(captioned(frame, f"return {view.total:.1f}"))
                # A video takes a while, so the live page shows its frames too.
                if self.ctx.now() >= self._next_frame_s:
                    self._publish(frame, subject.updates, filming=subject.name)
                yield
            if video.num_frames >= MIN_FRAMES:
                title = subject.title(self.ctx.spec.id, view.total)
                self.ctx.counters["videos"] += 1
        except OSError:  # such as a full disk, on which ffmpeg ends
            self.ctx.count_loss()
        finally:
            with contextlib.suppress(OSError):
                video.close(title)
            view.ended = True  # the live view starts another episode
            self._recorded_s = self.ctx.now()
