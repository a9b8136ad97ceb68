"""The fork server: a small process that has imported what its children need and forks them on request.

A forked child is ready in milliseconds, a spawned one after a second of imports. The user's own
process, with its threads and its GPU context, is never forked. Python's `multiprocessing` has a
fork server too, but it re-runs the user's script in every child, is shared with the rest of the
program, and outlives the run. This one belongs to the run.

The server and each child ask the kernel to kill them when their parent dies, so nothing is left
behind however the supervisor ends. Requests come over a socket, together with the child's file
descriptors; the server answers with the pid, and later with the exit status.
"""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import importlib
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
from typing import Any

import setproctitle

from spreeze.machine.lifeline import die_with_parent
from spreeze.store.logs import forgive_failed_prints
from spreeze.user_code import allow


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
    signal.signal(signal.SIGTERM, lambda *_: end_with_all())
    die_with_parent(parent, signal.SIGTERM)
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
    send(sock, ("ready", os.getpid(), 0))
    children: dict[int, int] = {}  # pidfd -> pid
    while True:
        readable: list[int] = select.select([sock.fileno(), *children], [], [])[0]
        for pidfd in [fd for fd in readable if fd in children]:
            pid = children.pop(pidfd)
            _, status = os.waitpid(pid, 0)
            os.close(pidfd)
            send(sock, ("exited", pid, os.waitstatus_to_exitcode(status)))
        if sock.fileno() in readable:
            if (request := receive(sock)) is None:
                return
            job, fds = request
            server = os.getpid()
            pid = os.fork()
            if pid == 0:
                _become_child(sock, server, list(children), job, fds)
            for fd in fds:
                os.close(fd)
            children[os.pidfd_open(pid)] = pid
            send(sock, ("started", pid, 0))


def end_with_all() -> None:
    """Kill the whole process group, including programs that environments have started."""
    os.killpg(os.getpgrp(), signal.SIGKILL)


def _become_child(
    sock: socket.socket, server: int, pidfds: list[int], job: Any, fds: list[int]
) -> None:
    """Run the requested function in the forked child; never returns."""
    code = 1
    try:
        # Only the supervisor decides when a role stops, so that a checkpoint can be written.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        die_with_parent(server)
        sock.close()
        for pidfd in pidfds:
            os.close(pidfd)
        *given, output = fds
        os.dup2(output, 1)
        os.dup2(output, 2)
        os.close(output)
        faulthandler.enable()
        forgive_failed_prints()
        sys.path[:] = job["sys_path"]
        allow(job["user_code"])
        module, name = job["function"].split(":")
        code = getattr(importlib.import_module(module), name)(job["payload"], *given)
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
