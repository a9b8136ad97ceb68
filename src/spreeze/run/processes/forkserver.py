"""The fork server: a small process that has imported what its children need and forks them on request.

A forked child is ready in milliseconds, a spawned one after a second of imports. The user's own
process, with its threads and its GPU context, is never forked. Python's `multiprocessing` has a
fork server too, but it re-runs the user's script in every child, is shared with the rest of the
program, and outlives the run. This one belongs to the run.

The server and each child ask the kernel to end them when their parent dies, so nothing is left
behind however the supervisor ends. Programs that a child has started, in whichever session, come to
the server when their own parent ends. It reaps them; when the child ends, it kills them.

Requests come over a socket, together with the child's file descriptors; the server answers with the
pid, and later with the exit status.
"""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import importlib
import itertools
import os
import pickle
import select
import signal
import socket
import struct
import sys
import threading
import traceback
import warnings
from typing import Any, NamedTuple

import setproctitle

from spreeze.faults import fault_point
from spreeze.machine.lifeline import (
    adopt_orphans,
    die_with_parent,
    end_children,
    end_descendants,
    own_what_starts,
    reap_orphans,
)
from spreeze.machine.oom import offer_as_victim
from spreeze.store.logs import forgive_failed_prints
from spreeze.user_code import allow

SWEEP_S, REAP_S = 0.02, 0.5
"""How soon the server looks again whether a program that it has killed has started another one, and how
often it looks for programs that have ended."""


class Request(NamedTuple):
    """What a child is to run: `function(payload, *fds)`, given as `module:function`."""

    function: str
    payload: bytes
    sys_path: list[str]
    user_code: dict[str, str]
    """The user's own modules that it may import, and the folder of each."""
    oom_points: int = 0
    """How much sooner than others it is ended when memory runs out."""


class Forked(NamedTuple):
    """A child that runs."""

    pid: int
    name: str
    """What it starts is marked with this name. Unlike a pid, it is never used again."""


def send(sock: socket.socket, message: Any, fds: tuple[int, ...] = ()) -> None:
    """Send one message together with open files."""
    body = pickle.dumps(message)
    socket.send_fds(sock, [struct.pack("<q", len(body))], fds)
    sock.sendall(body)


def receive(sock: socket.socket) -> tuple[Any, list[int]] | None:
    """The next message and its files; None if the other end is closed."""
    try:
        head, fds, _, _ = socket.recv_fds(sock, 8, 8)
    except ConnectionResetError:
        return None
    if len(head) < 8:
        return None
    (length,) = struct.unpack("<q", head)
    body = bytearray()
    while len(body) < length:
        part = sock.recv(min(length - len(body), 1 << 20))
        if not part:
            return None
        body += part
    return pickle.loads(bytes(body)), fds  # from our own parent, over a private socket


def serve(sock: socket.socket, parent: int, modules: tuple[str, ...]) -> None:
    """Fork a child for each request, until the parent closes its end."""
    die_with_parent(parent)  # there is nothing to clean up before the first child
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    setproctitle.setproctitle("spreeze fork server")
    gc.disable()  # collecting during imports finds little and takes a tenth of torch's import time
    for module in modules:
        with contextlib.suppress(ImportError):
            importlib.import_module(module)
    gc.freeze()  # or collections in the children would touch, and so copy, the pages they share
    gc.enable()
    assert threading.active_count() == 1, (
        "a preloaded module started a thread: forking would be unsafe"
    )
    # The interpreter also warns about native threads of libraries; only Python's threads matter here.
    warnings.filterwarnings("ignore", "This process .* is multi-threaded", DeprecationWarning)
    adopt_orphans()
    server = os.getpid()
    signal.signal(signal.SIGTERM, lambda *_: end_with_all() if os.getpid() == server else None)
    die_with_parent(parent, signal.SIGTERM)
    send(sock, ("ready", server, 0))
    children: dict[int, Forked] = {}  # by their pidfds
    numbers, strays = itertools.count(), False
    while True:
        ready = select.select([sock.fileno(), *children], [], [], SWEEP_S if strays else REAP_S)[0]
        reap_orphans(keep=dict(children.values()))
        if ended := [fd for fd in ready if fd in children]:
            statuses = [_reap(children, pidfd) for pidfd in ended]
            strays = end_children(keep=dict(children.values()))
            for pid, code in statuses:
                send(sock, ("exited", pid, code))
        elif strays:
            strays = end_children(keep=dict(children.values()))
        if sock.fileno() in ready:
            if (message := receive(sock)) is None:
                return
            _fork(sock, children, f"{server}.{next(numbers)}", *message)


def _reap(children: dict[int, Forked], pidfd: int) -> tuple[int, int]:
    """The pid and the exit code of a child that has ended."""
    pid = children.pop(pidfd).pid
    _, status = os.waitpid(pid, 0)
    os.close(pidfd)
    return pid, os.waitstatus_to_exitcode(status)


def _fork(
    sock: socket.socket, children: dict[int, Forked], name: str, request: Request, fds: list[int]
) -> None:
    """Start a child, and answer with its pid or with the reason why there is none."""
    server = os.getpid()
    try:
        pid = os.fork()
    except OSError as error:
        answer = ("failed", 0, error.errno or 0)
    else:
        if pid == 0:
            _become_child(sock, (server, name), list(children), request, fds)
        children[os.pidfd_open(pid)] = Forked(pid, name)
        answer = ("started", pid, 0)
    for fd in fds:
        os.close(fd)
    fault_point("forkserver.forked")
    send(sock, answer)


def end_with_all() -> None:
    """Kill everything that environments have started, in whichever session, then the whole process group."""
    end_descendants()
    os.killpg(os.getpgrp(), signal.SIGKILL)


def _become_child(
    sock: socket.socket,
    born: tuple[int, str],
    pidfds: list[int],
    request: Request,
    fds: list[int],
) -> None:
    """Run the requested function in the forked child; never returns."""
    code, (server, name) = 1, born
    try:
        # Only the supervisor decides when a role stops, so that a checkpoint can be written.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        die_with_parent(server)
        # Only the server adopts orphans: a role cannot tell them from what its environment waits for.
        own_what_starts(name)
        offer_as_victim(request.oom_points)
        sock.close()
        for pidfd in pidfds:
            os.close(pidfd)
        *given, output = fds
        os.dup2(output, 1)
        os.dup2(output, 2)
        os.close(output)
        faulthandler.enable()
        # Works while C code holds the interpreter's lock: the log then shows where a process hangs.
        faulthandler.register(signal.SIGUSR1, all_threads=True)
        forgive_failed_prints()
        sys.path[:] = request.sys_path
        allow(request.user_code)
        module, name = request.function.split(":")
        code = getattr(importlib.import_module(module), name)(request.payload, *given)
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    try:
        serve(socket.socket(fileno=int(sys.argv[1])), int(sys.argv[2]), tuple(sys.argv[3:]))
    except ConnectionError:
        pass  # the parent may end while it is being sent a message
    except Exception:
        traceback.print_exc()
    # When the parent is killed, its socket closes before the kernel sends the death signal.
    end_with_all()
