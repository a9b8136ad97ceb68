"""`spreeze play`: shows a trained policy in a window, or writes a video."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import tyro

from spreeze.cli.output import stdout_to_stderr
from spreeze.cli.playback import as_trained, check_fits, env_to_play
from spreeze.envs.messages import messages_to
from spreeze.errors import UsageError
from spreeze.store.rundir import find_run

if TYPE_CHECKING:
    from spreeze.envs.rendering import View
    from spreeze.policy import Policy


@dataclass(frozen=True, kw_only=True)
class Arguments:
    """Show a trained policy in a window, or write a video of it."""

    run: tyro.conf.Positional[str | None] = None
    """Path of a run, or its name in the runs folder. Default: the newest run."""
    video: str | None = None
    """Write an MP4 to this file instead of opening a window. The title contains the return."""
    episodes: int = 1
    """Number of episodes."""
    seed: int = 0
    """Seed of the environment."""
    checkpoint: str | None = None
    """best, last, or a number of updates; the run's checkpoints folder has them. Default: the best, or else the last."""
    env: str | None = None
    """Environment to play in. Needed if the run was trained on your own code (package.module:EnvClass, path/file.py:EnvClass)."""
    runs: str = "runs"
    """The runs folder."""


def main(arguments: list[str], _started_s: float) -> int:
    """Play, then print the returns."""
    args = tyro.cli(Arguments, args=arguments, prog="spreeze play")
    check(args)
    # Imported late, so that --help stays fast.
    from spreeze.envs.rendering import NoPicture, View, needs_video_extra, view_without_display
    from spreeze.policy.load import load_policy

    run = find_run(args.run, Path(args.runs))
    policy = load_policy(run.checkpoint(args.checkpoint))
    env = env_to_play(policy, f"run {run.path.name}", args.env)
    try:
        with stdout_to_stderr(), messages_to(run.log("play")):
            target = as_trained(env, run)
            check_fits(policy, target, env)
            if args.video is not None and (missing := needs_video_extra()):
                raise NoPicture(missing)
            view = (
                View(target, policy.spec, "human")
                if args.video is None
                else view_without_display(target, policy.spec)
            )
            try:
                returns = _record(args, view, policy) if args.video else _show(args, view, policy)
            finally:
                view.close()
    except NoPicture as problem:
        raise UsageError([f"{env} cannot be rendered: {problem}"]) from None
    for total in returns:
        print(f"return {total:.1f}")
    if args.video is not None:
        print(f"Video: {args.video}")
    return 0


def check(args: Arguments) -> None:
    """Refuse bad arguments before anything is loaded."""
    problems = []
    if not 1 <= args.episodes <= 1000:
        problems.append(f"--episodes {args.episodes}: must be a whole number from 1 to 1000.")
    if args.video is not None:
        path = Path(args.video)
        if path.suffix.lower() != ".mp4":
            problems.append(
                f"--video {args.video}: must be an MP4; name it {path.stem or 'play'}.mp4."
            )
        if not path.absolute().parent.is_dir():
            problems.append(f"--video {args.video}: there is no folder {path.parent}.")
    elif not (os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")):
        problems.append("there is no display to open a window on. Use --video FILE.mp4.")
    if problems:
        raise UsageError(problems)


def _record(args: Arguments, view: View, policy: Policy) -> list[float]:
    """Write all episodes into one video. Returns the return of each."""
    from spreeze.store.video import VideoWriter, captioned

    assert args.video is not None
    returns: list[float] = []
    video = VideoWriter(Path(args.video), view.steps_hz)
    title = None
    try:
        for episode in range(args.episodes):
            view.reset(args.seed + episode)
            while not view.ended:
                video.add(captioned(view.frame(), f"return {view.total:.1f}"))
                view.step(policy.greedy_action)
            returns.append(view.total)
        shown = ", ".join(f"{total:.1f}" for total in returns[:10])
        title = f"{policy.spec.id}: return {shown}"
    finally:
        video.close(title)
    return returns


def _show(args: Arguments, view: View, policy: Policy) -> list[float]:
    """Show each episode in a window, in real time. Returns the return of each."""
    returns = []
    for episode in range(args.episodes):
        view.reset(args.seed + episode)
        while not view.ended:
            began_s = time.monotonic()
            view.step(policy.greedy_action)
            time.sleep(max(0.0, 1 / view.steps_hz - (time.monotonic() - began_s)))
        returns.append(view.total)
    return returns
