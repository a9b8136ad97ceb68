"""Visualizer: draws the newest policy at a modest rate, and films it at milestones.

Reads: weights, control, the `best` checkpoint.   Writes: live/, videos/, its control counters, metrics.
Owns: one environment that draws. Training does not know of it: it takes what the others leave.
"""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator
from pathlib import Path

import numpy as np

from spreeze.envs.inspect import evaluation_env
from spreeze.envs.rendering import Frame, NoPicture, View, needs_video_extra, view_without_display
from spreeze.machine.affinity import run_in_background
from spreeze.policy import Policy, load_policy
from spreeze.roles.context import Context
from spreeze.settings.config import resolved
from spreeze.store.files import replace_bytes, write_atomic
from spreeze.store.video import VideoWriter, captioned, jpeg
from spreeze.wires.weights import Stamp

POLL_S = 0.1
VIDEO_HZ = 20.0
FILM_LIMIT_S, LEAST_FRAMES = 10.0, 10
"""Where others need the cores, a film has what can be drawn in this time, if it is worth the name."""
LAST_VIDEO_S = 2.0
"""The run is over and the user waits: the last video has what can be drawn in this time."""
BETTER_BY = 0.1
"""A new best is filmed if it is better by this share of all progress so far ..."""
FILM_EVERY_S = 30.0
"""... and if the last film is that old."""
KEPT_VIDEOS = 8


def run(ctx: Context) -> Iterator[None]:
    """One unit of work is one picture, or the wait for the next."""
    run_in_background()
    while ctx.control.learner["first_update_s"] == 0:  # while a run starts, every core is needed
        ctx.wait(POLL_S)
        yield
    ctx.run.live.mkdir(exist_ok=True)
    try:
        if missing := needs_video_extra():
            raise NoPicture(missing)
        env = evaluation_env(ctx.job.env, ctx.spec)
        view = view_without_display(env, ctx.spec)
    except NoPicture as problem:
        # Not an error: everything else goes on, and the page says what to install.
        print(f"no pictures: {problem}")
        write_atomic(ctx.run.live / "view.json", {"problem": str(problem)})
        return
    studio = VideoRecorder(ctx, view)
    try:
        studio.keep_first()
        while True:
            studio.show()
            yield
            yield from studio.film_if_due()
    finally:
        studio.film_last()
        view.close()


class VideoRecorder:
    """The camera, the policy it looks at, and what was filmed so far."""

    def __init__(self, ctx: Context, view: View) -> None:
        """Nothing was drawn yet."""
        self.ctx, self.view = ctx, view
        self.policy = Policy(ctx.spec, ctx.config.hyper.policy_form(ctx.spec))
        self._first: tuple[Policy, int] | None = None
        """Policy and updates, until it is filmed."""
        for draft in ctx.run.videos.glob(".*.mp4"):
            draft.unlink(missing_ok=True)  # of one that was killed
        self._spare = self.policy.vector.copy()
        self._stamp = Stamp()
        self._seeds = np.random.default_rng(ctx.seed()[0])
        self._frames_hz = resolved(ctx.config.visualizer.frames_hz)
        self._next_s = 0.0
        self._worst = self._filmed = float("nan")
        """The first evaluation, and the one that was filmed last."""
        self._filmed_s = -FILM_EVERY_S

    def show(self) -> None:
        """The policy as it is now, as many steps further as time has passed."""
        ctx, view = self.ctx, self.view
        self._fetch()
        if view.ended:
            view.reset(int(self._seeds.integers(2**31)))
        for _ in range(max(1, round(view.steps_hz / self._frames_hz))):
            view.step(lambda obs: self.policy.to_env_action(self.policy.act(obs, explore=False)))
            if view.ended:
                break
        self._publish(view.frame(), self._stamp.updates)
        ctx.wait(max(0.0, self._next_s - ctx.now()))

    def _publish(self, frame: Frame, updates: int, filming: str | None = None) -> None:
        """Make this the live picture."""
        ctx, view = self.ctx, self.view
        replace_bytes(ctx.run.live / "frame.jpg", jpeg(frame))
        ctx.counters["frames"] += 1
        shown = {"frame": int(ctx.counters["frames"]), "time_s": round(ctx.now(), 3)}
        state = {"updates": updates, "return": view.total, "filming": filming}
        write_atomic(ctx.run.live / "view.json", shown | state)
        self._next_s = max(self._next_s, ctx.now() - 1 / self._frames_hz) + 1 / self._frames_hz

    def keep_first(self) -> None:
        """Keep the first policy for its film, which waits for the first evaluation."""
        self._fetch()
        if self.ctx.counters["frames"] == 0:  # not one that was started again
            first = Policy(self.ctx.spec, self.policy.form, self.policy.vector.copy())
            self._first = (first, self._stamp.updates)

    def film_if_due(self) -> Iterator[None]:
        """The first policy, and later the best one, if it is clearly better than the one filmed before."""
        counters, now = self.ctx.control.evaluator, self.ctx.now()
        wanted = self.ctx.config.visualizer.video_s > 0
        if not wanted or counters["evaluations"] == 0 or now - self._filmed_s < FILM_EVERY_S:
            return
        if self._first is not None:
            (first, updates), self._first = self._first, None
            path = self._path("first")
            yield from self._film(path, first, updates, "first policy", FILM_LIMIT_S)
            return
        best = float(counters["best_return"])
        if np.isnan(self._filmed):
            self._worst = self._filmed = float(counters["return_mean"])
        if best - self._filmed > BETTER_BY * abs(best - self._worst):
            yield from self._film_best("best", FILM_LIMIT_S)

    def film_last(self) -> None:
        """How it ended."""
        for _ in self._film_best("last", LAST_VIDEO_S):
            pass

    def _film_best(self, name: str, limit_s: float) -> Iterator[None]:
        checkpoint = self.ctx.run.checkpoints / "best"
        if self.ctx.config.visualizer.video_s == 0 or not checkpoint.exists():
            return
        try:
            checkpoint = checkpoint.resolve()
            policy = load_policy(checkpoint)
        except OSError:
            return  # replaced by a better one at this very moment
        self._filmed = float(self.ctx.control.evaluator["best_return"])
        path = self._path(name if name == "last" else checkpoint.name)
        what = f"best policy, evaluated {self._filmed:.1f}"
        updates = int(checkpoint.name.partition("-")[0])
        yield from self._film(path, policy, updates, what, limit_s)
        for old in sorted(self.ctx.run.videos.glob("*-best.mp4"))[:-KEPT_VIDEOS]:
            old.unlink(missing_ok=True)

    def _path(self, name: str) -> Path:
        return self.ctx.run.videos / f"{name}.mp4"

    def _film(
        self, path: Path, policy: Policy, updates: int, what: str, limit_s: float
    ) -> Generator[None, None, None]:
        """One episode, from its start; whatever was filmed when it must end is kept."""
        view, began_s = self.view, time.monotonic()
        stride = max(1, round(view.steps_hz / VIDEO_HZ))
        num_frames = int(self.ctx.config.visualizer.video_s * view.steps_hz / stride)
        film = VideoWriter(path, view.steps_hz / stride)
        title = None
        view.reset(0)
        try:
            for _ in range(max(1, num_frames)):
                for _ in range(stride):
                    view.step(lambda obs: policy.to_env_action(policy.act(obs, explore=False)))
                    if view.ended:
                        break
                late = time.monotonic() - began_s > limit_s
                if view.ended or late:  # after its end the next episode would be seen
                    break
                frame = view.frame()
                film.add(captioned(frame, f"return {view.total:.1f}"))
                if self.ctx.now() >= self._next_s:  # filming may take long: the page shows it
                    self._publish(frame, updates, what.partition(",")[0])
                yield
            if film.num_frames >= LEAST_FRAMES:
                title = f"{self.ctx.spec.id}: return {view.total:.1f} ({what})"
                self.ctx.counters["videos"] += 1
        finally:
            film.close(title)
            view.ended = True  # what comes next is another episode
            self._filmed_s = self.ctx.now()

    def _fetch(self) -> None:
        stamp = self.ctx.weights.fetch(self._spare, self._stamp.version)
        if stamp is not None:
            self.policy.vector[:] = self._spare
            self._stamp = stamp
