"""`spreeze play`: shows a trained policy in a window, or writes a video."""

from __future__ import annotations

import math
import os
import re
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import tyro

from spreeze.cli.output import stdout_to_stderr
from spreeze.cli.playback import as_trained, check_fits, env_to_play, network_to_play
from spreeze.envs.messages import messages_to
from spreeze.errors import UsageError
from spreeze.settings.arguments import read_arguments
from spreeze.store.rundir import find_run

if TYPE_CHECKING:
    from spreeze.envs.rendering import View
    from spreeze.envs.targets import EnvTarget
    from spreeze.policy import Policy

SMALLEST, LARGEST = 64, 4096
"""Pixels of a video's side."""
SAY_EVERY_S = 5.0
"""How often a log gets a line while a video is made."""


@dataclass(frozen=True, kw_only=True)
class Arguments:
    """Show a trained policy in a window, or write a video of it."""

    run: tyro.conf.Positional[str | None] = None
    """Path of a run, or its name in the runs folder. Default: the newest run."""
    video: str | None = None
    """Write an MP4 to this file instead of opening a window. The title contains the return."""
    episodes: int | None = None
    """Number of episodes. Default: 1, or with --seconds as many as fit."""
    seconds: float | None = None
    """Stop after this much simulated time, which is the length of the video."""
    size: str | None = None
    """Width and height of the video in pixels, such as 640x480. Default: the environment's own; for MuJoCo 400x300."""
    seed: int = 0
    """Seed of the environment."""
    checkpoint: str | None = None
    """best, last, or a number of updates; the run's checkpoints folder has them. Default: the best, or else the last."""
    env: str | None = None
    """Environment to play in. Needed if the run was trained on your own code (package.module:EnvClass, path/file.py:EnvClass)."""
    network: str | None = None
    """Your class or function of (inputs, outputs) that makes the policy's torch module, or your algorithm: file.py:NAME. Needed if it acts through torch."""
    runs: str = "runs"
    """The runs folder."""


class Episode(NamedTuple):
    """What one episode has brought."""

    total: float
    ended: bool
    """Whether it was played to its end."""

    def __str__(self) -> str:
        return f"{self.total:.1f}{'' if self.ended else ' when the time was up'}"


def main(arguments: list[str], _started_s: float) -> int:
    """Play, then print the returns."""
    args = read_arguments(Arguments, arguments, "play")
    check(args)
    # Imported late, so that --help stays fast.
    from spreeze.envs.rendering import NoPicture
    from spreeze.policy.load import load_policy

    run = find_run(args.run, Path(args.runs))
    policy = load_policy(run.checkpoint(args.checkpoint), network_to_play(args.network, run))
    env = env_to_play(policy, f"run {run.path.name}", args.env)
    try:
        with stdout_to_stderr(), messages_to(run.log("play")):
            target = as_trained(env, run)
            view = _view(args, policy, target, env)
            try:
                episodes = _record(args, view, policy) if args.video else _show(args, view, policy)
            finally:
                view.close()
    except NoPicture as problem:
        raise UsageError([f"{env} cannot be rendered: {problem}"]) from None
    for episode in episodes:
        print(f"return {episode}")
    if args.video is not None:
        print(f"Video: {args.video}")
    return 0


def check(args: Arguments) -> None:
    """Refuse bad arguments before anything is loaded."""
    problems = []
    if args.episodes is not None and not 1 <= args.episodes <= 1000:
        problems.append(f"--episodes {args.episodes}: must be a whole number from 1 to 1000.")
    if args.seconds is not None and not 0.1 <= args.seconds <= 3600:
        problems.append(f"--seconds {args.seconds:g}: must be a number from 0.1 to 3600.")
    if args.size is not None and _size(args.size) is None:
        problems.append(
            f"--size {args.size}: must be a width and a height from {SMALLEST} to {LARGEST}, such as 640x480."
        )
    if args.video is not None:
        path = Path(args.video)
        if path.suffix.lower() != ".mp4":
            problems.append(
                f"--video {args.video}: must be an MP4; name it {path.stem or 'play'}.mp4."
            )
        if not path.absolute().parent.is_dir():
            problems.append(f"--video {args.video}: there is no folder {path.parent}.")
    elif args.size is not None:
        problems.append("--size is the size of a video. Name one, too: --video FILE.mp4.")
    elif not (os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")):
        problems.append("there is no display to open a window on. Use --video FILE.mp4.")
    if problems:
        raise UsageError(problems)


def _size(text: str) -> tuple[int, int] | None:
    """Width and height in `640x480`; None if that is not what it says."""
    if (match := re.fullmatch(r"(\d{1,5})x(\d{1,5})", text)) is None:
        return None
    width, height = int(match[1]), int(match[2])
    fits = all(SMALLEST <= side <= LARGEST for side in (width, height))
    return (width, height) if fits else None


def _view(args: Arguments, policy: Policy, target: EnvTarget, env: str) -> View:
    """The environment with its picture, if it fits the policy and can be drawn."""
    from spreeze.envs import rendering

    if args.video is None:
        check_fits(policy, target, env)
        return rendering.View(target, policy.spec, "human")
    backends = rendering.draw_off_screen()  # before the environment's libraries are imported
    check_fits(policy, target, env)
    if missing := rendering.needs_video_extra():
        raise rendering.NoPicture(missing)
    size = _size(args.size or "") or (rendering.WIDTH, rendering.HEIGHT)
    return rendering.view_without_display(target, policy.spec, size=size, backends=backends)


def _play(
    args: Arguments, view: View, policy: Policy, on_step: Callable[[], None]
) -> list[Episode]:
    """Play as many episodes and seconds as asked for; calls `on_step` before each step."""
    most_steps = _most_steps(args, view)
    most = args.episodes or (1 if args.seconds is None else math.inf)
    episodes: list[Episode] = []
    steps = 0
    while len(episodes) < most and steps < most_steps:
        view.reset(args.seed + len(episodes))
        while not view.ended and steps < most_steps:
            on_step()
            view.step(policy.greedy_action)
            steps += 1
        episodes.append(Episode(view.total, view.ended))
    return episodes


def _most_steps(args: Arguments, view: View) -> float:
    """The env steps that fit into the time."""
    return math.inf if args.seconds is None else max(1, round(args.seconds * view.steps_hz))


def _record(args: Arguments, view: View, policy: Policy) -> list[Episode]:
    """Write all episodes into one video."""
    from spreeze.store.video import VideoWriter, captioned, fitted

    assert args.video is not None
    size = _size(args.size or "")
    video = VideoWriter(Path(args.video), view.steps_hz)
    title = None
    try:
        with _progress(_num_pictures(args, view, policy)) as show_progress:

            def film() -> None:
                frame = view.frame() if size is None else fitted(view.frame(), size)
                video.add(captioned(frame, f"return {view.total:.1f}"))
                show_progress(video.num_frames)

            episodes = _play(args, view, policy, film)
        title = f"{policy.spec.id}: return {', '.join(map(str, episodes[:10]))}"
    finally:
        video.close(title)
    return episodes


def _num_pictures(args: Arguments, view: View, policy: Policy) -> int | None:
    """The most pictures that the video may get; None if nothing bounds them."""
    limit = policy.spec.max_episode_steps
    count = args.episodes or (1 if args.seconds is None else math.inf)
    most = min(_most_steps(args, view), math.inf if limit is None else limit * count)
    return None if math.isinf(most) else int(most)


@contextmanager
def _progress(total: int | None) -> Iterator[Callable[[int], None]]:
    """Show how many pictures there are: as a bar on a terminal, else as a line every few seconds."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True, highlight=False)
    of_all = "" if total is None else f" of at most {total:,}"
    text = TextColumn("filming: {task.completed:,} pictures" + of_all)
    said_s = time.monotonic()
    with Progress(
        text, BarColumn(), TimeRemainingColumn(), console=console, transient=True,
        disable=not console.is_terminal,
    ) as bar:  # fmt: skip
        task = bar.add_task("", total=total)

        def show(done: int) -> None:
            nonlocal said_s
            bar.update(task, completed=done)
            if bar.disable and time.monotonic() - said_s >= SAY_EVERY_S:
                said_s = time.monotonic()
                print(f"filming: {done:,} pictures{of_all}", file=sys.stderr, flush=True)

        yield show


def _show(args: Arguments, view: View, policy: Policy) -> list[Episode]:
    """Show each episode in a window, in real time."""
    due_s = time.monotonic()

    def keep_pace() -> None:
        nonlocal due_s
        time.sleep(max(0.0, due_s - time.monotonic()))
        due_s = time.monotonic() + 1 / view.steps_hz

    return _play(args, view, policy, keep_pace)
