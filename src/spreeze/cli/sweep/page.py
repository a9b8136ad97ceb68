"""The live page beside a sweep: a process that reads the sweep's folder, as beside a run."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import cloudpickle

from spreeze.cli.sweep.display import Display
from spreeze.dashboard.local_page import FILE, LocalPage, can_serve
from spreeze.envs.suites import advice
from spreeze.machine.lifeline import die_with_parent
from spreeze.store.rundir import RunDir

SERVE = """
import sys
from spreeze.dashboard.server import observer_main
observer_main(sys.stdin.buffer.read(), -1, *map(int, sys.argv[1:]))
"""
END_S = 5.0


@contextmanager
def page_of(folder: Path, wanted: bool, display: Display) -> Iterator[None]:
    """Serve the page of `folder` inside the block, if it is wanted and can be served."""
    if wanted and not can_serve():
        display.say(f"no live page. {advice('dashboard')}")
    if not (wanted and can_serve()):
        yield
        return
    try:
        page = LocalPage(folder)
    except OSError as error:
        display.say(f"no live page: cannot open a local port ({error})")
        yield
        return
    reader, writer = os.pipe()
    fds = (reader, page.listening.fileno())
    process = subprocess.Popen(
        [sys.executable, "-P", "-c", SERVE, *map(str, fds)],
        stdin=subprocess.PIPE,
        pass_fds=fds,
        process_group=0,
        preexec_fn=partial(die_with_parent, os.getpid()),  # noqa: PLW1509 (no threads yet)
    )
    assert process.stdin is not None
    process.stdin.write(cloudpickle.dumps((folder.absolute(), None, page.access, 0)))
    process.stdin.close()
    os.close(reader)
    # The token must not end up in a log file.
    where = RunDir(folder.absolute() / FILE).short_path
    hidden = f"{page.url}?token=...  (the token is in {where})"
    display.say(f"live page: {page.address if display.console.is_terminal else hidden}")
    try:
        yield
    finally:
        os.close(writer)
        try:
            process.wait(END_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        page.close()
