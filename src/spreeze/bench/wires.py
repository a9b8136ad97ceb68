"""How fast the wires are against a queue, a pipe and files: rows per second, and how old policies are.

One process sends and this one reads, by each means in turn. Everything that is sent repeats a single
number, so a torn read, half of one message beside half of another, is seen.
"""

from __future__ import annotations

import multiprocessing
import os
import queue
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np

from spreeze.errors import RunFailed
from spreeze.machine.lifeline import die_with_parent
from spreeze.rows import Layout, as_matrix
from spreeze.spec import Floats
from spreeze.store.files import replace_bytes
from spreeze.wires.arena import Arena, Block
from spreeze.wires.experience import Experience, experience_blocks
from spreeze.wires.weights import Weights, weights_blocks

SENT_ROWS, LANE_ROWS, DRAIN_ROWS = 32, 65_536, 8192
"""Rows of one message, of the lane, and of one read."""
NUM_WEIGHTS = 73_484
"""Size of the policy of HalfCheetah-v5 with two layers of 256."""
PUBLISH_EVERY_S = 0.002
POLL_S = 1e-4
"""How often is looked for a file."""
SENT_TIMES = 1024
"""Publications whose time is kept: two seconds of them, far longer than a reader needs."""
MAX_WAITING = 64
"""Messages with rows that may wait for the reader, in the queue or as files."""
MAX_NUMBER = 1 << 20
"""Messages repeat a number below this, which float32 holds exactly."""
OTHERS = ("queue", "pipe", "file")
NUM_ROUNDS = 3
"""Turns of each means."""
FORK = multiprocessing.get_context("fork")


class Received(NamedTuple):
    """What arrived of a stream of rows."""

    rows: int
    torn: int = 0
    lost: int = 0


class Latencies(NamedTuple):
    """Seconds from sending to reading, one for each policy that was read."""

    seconds: list[float]
    torn: int = 0


def measure(layout: Layout, seconds: float) -> dict[str, Any]:
    """Rows per second and latencies of each means, in turns."""
    streams = {
        "wire": rows_by_wire,
        "queue": _rows_by_queue,
        "pipe": _rows_by_pipe,
        "file": _rows_by_file,
    }
    policies = {
        "wire": _policy_by_wire,
        "queue": _policy_by_queue,
        "pipe": _policy_by_pipe,
        "file": _policy_by_file,
    }
    rates: dict[str, list[float]] = {name: [] for name in streams}
    latencies: dict[str, list[float]] = {name: [] for name in policies}
    torn = lost = 0
    turn_s = seconds / (NUM_ROUNDS * (len(streams) + len(policies)))
    for _ in range(NUM_ROUNDS):
        for name, receive in streams.items():
            received = receive(layout, turn_s)
            rates[name].append(received.rows / turn_s)
            torn, lost = torn + received.torn, lost + received.lost
        for name, listen in policies.items():
            seen = listen(turn_s)
            if not seen.seconds:
                raise RunFailed(
                    f"no weights arrived by {name} in {turn_s:.2f} s; try a longer --seconds"
                )
            latencies[name].append(median(seen.seconds))
            torn += seen.torn
    hz = {name: median(values) for name, values in rates.items()}
    us = {name: 1e6 * median(values) for name, values in latencies.items()}
    return {
        "row_bytes": layout.row_bytes,
        "rows_hz": hz["wire"],
        "bytes_hz": hz["wire"] * layout.row_bytes,
        **{f"{name}_rows_hz": hz[name] for name in OTHERS},
        "rows_overwritten": lost,
        "weights_bytes": 4 * NUM_WEIGHTS,
        "latency_us": us["wire"],
        **{f"{name}_latency_us": us[name] for name in OTHERS},
        "torn_reads": torn,
    }


@contextmanager
def _sending(send: Callable[[], None]) -> Iterator[None]:
    """Run a process that calls `send` in a loop, until the block ends."""
    parent = os.getpid()

    def forever() -> None:
        die_with_parent(parent)
        while True:
            send()

    process = FORK.Process(target=forever, daemon=True)
    process.start()
    try:
        yield
    finally:
        process.kill()
        process.join()
        process.close()


def _num_torn(lines: Floats) -> int:
    """Number of lines that do not repeat a single number."""
    return int((lines != lines[:, :1]).any(1).sum())


def _until(seconds: float) -> Iterator[None]:
    """Iterate until the time is up."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        yield


def rows_by_wire(layout: Layout, seconds: float) -> Received:
    """Rows through a lane, from one process to another."""
    arena = Arena.create(experience_blocks(layout, 1, LANE_ROWS, SENT_ROWS))
    wire, number = Experience(arena, SENT_ROWS), np.zeros(1)
    writer, (reader,) = wire.writer(0), wire.readers(as_words=True)

    def send() -> None:
        number[0] = (number[0] + 1) % MAX_NUMBER
        as_matrix(writer.reserve())[:] = number[0]
        writer.commit(SENT_ROWS)

    room = np.empty((DRAIN_ROWS, layout.width), np.uint32)
    received = torn = 0
    with _sending(send):
        for _ in _until(seconds):
            fresh = reader.drain(room)
            received += len(fresh)
            torn += _num_torn(fresh[:SENT_ROWS].view(np.float32))
    arena.close()
    return Received(received, torn, reader.num_lost)


def _rows_by_queue(layout: Layout, seconds: float) -> Received:
    wire = FORK.Queue(maxsize=MAX_WAITING)
    rows = np.zeros((SENT_ROWS, layout.width), np.float32)
    received = 0
    with _sending(lambda: wire.put(rows)):
        for _ in _until(seconds):
            try:
                received += len(wire.get(timeout=0.1))
            except queue.Empty:
                continue
    wire.close()
    return Received(received)


def _rows_by_pipe(layout: Layout, seconds: float) -> Received:
    reading, writing = FORK.Pipe(duplex=False)
    rows = np.zeros(SENT_ROWS * layout.width, np.float32)
    room = np.empty_like(rows)
    received = 0
    with _sending(lambda: writing.send_bytes(rows.data)):
        for _ in _until(seconds):
            if reading.poll(0.1):
                reading.recv_bytes_into(room)
                received += SENT_ROWS
    reading.close()
    writing.close()
    return Received(received)


def _rows_by_file(layout: Layout, seconds: float) -> Received:
    """A new file for each message, removed when it was read."""
    rows, sent, received = np.zeros((SENT_ROWS, layout.width), np.float32), count(), 0
    with TemporaryDirectory() as folder:

        def send() -> None:
            number = next(sent)
            while (Path(folder) / str(number - MAX_WAITING)).exists():
                time.sleep(POLL_S)
            replace_bytes(Path(folder) / str(number), rows.tobytes())

        with _sending(send):
            file = Path(folder) / "0"
            for _ in _until(seconds):
                if not file.exists():
                    time.sleep(POLL_S)
                    continue
                received += len(np.fromfile(file, np.float32).reshape(-1, layout.width))
                file.unlink()
                file = file.with_name(str(int(file.name) + 1))
    return Received(received)


def _policy_by_wire(seconds: float) -> Latencies:
    times = Block("bench.sent_ns", (SENT_TIMES,), np.int64)
    arena = Arena.create([*weights_blocks(NUM_WEIGHTS), times])
    wire, vector = Weights(arena), np.zeros(NUM_WEIGHTS, np.float32)
    sent_ns = arena["bench.sent_ns"]

    def send() -> None:
        time.sleep(PUBLISH_EVERY_S)
        vector[:] = (vector[0] + 1) % MAX_NUMBER
        sent_ns[(wire.version + 1) % SENT_TIMES] = time.monotonic_ns()
        wire.publish(vector, updates=0, env_steps=0)

    room, version = np.zeros(NUM_WEIGHTS, np.float32), 0
    seen, torn = [], 0
    with _sending(send):
        for _ in _until(seconds):
            if (stamp := wire.fetch(room, version)) is not None:
                seen.append((time.monotonic_ns() - int(sent_ns[stamp.version % SENT_TIMES])) / 1e9)
                version = stamp.version
                torn += _num_torn(room[None])
    arena.close()
    return Latencies(seen, torn)


def _policy_by_file(seconds: float) -> Latencies:
    vector = np.zeros(NUM_WEIGHTS, np.float32)
    seen, newest, torn = [], 0, 0
    with TemporaryDirectory() as folder:
        path = Path(folder) / "policy"

        def send() -> None:
            time.sleep(PUBLISH_EVERY_S)
            vector[:] = (vector[0] + 1) % MAX_NUMBER
            replace_bytes(path, time.monotonic_ns().to_bytes(8, "little") + vector.tobytes())

        with _sending(send):
            for _ in _until(seconds):
                if path.exists() and (changed := path.stat().st_mtime_ns) != newest:
                    newest, data = changed, path.read_bytes()
                    torn += _num_torn(np.frombuffer(data, np.float32, offset=8)[None])
                    sent_ns = int.from_bytes(data[:8], "little")
                    seen.append((time.monotonic_ns() - sent_ns) / 1e9)
    return Latencies(seen, torn)


def _policy_by_pipe(seconds: float) -> Latencies:
    reading, writing = FORK.Pipe(duplex=False)
    vector = np.zeros(NUM_WEIGHTS, np.float32)

    def send() -> None:
        time.sleep(PUBLISH_EVERY_S)
        writing.send_bytes(time.monotonic_ns().to_bytes(8, "little") + vector.tobytes())

    seen: list[float] = []
    with _sending(send):
        for _ in _until(seconds):
            if reading.poll(0.1):
                sent_ns = int.from_bytes(reading.recv_bytes()[:8], "little")
                seen.append((time.monotonic_ns() - sent_ns) / 1e9)
    reading.close()
    writing.close()
    return Latencies(seen)


def _policy_by_queue(seconds: float) -> Latencies:
    wire, vector = FORK.Queue(), np.zeros(NUM_WEIGHTS, np.float32)

    def send() -> None:
        time.sleep(PUBLISH_EVERY_S)
        wire.put((time.monotonic_ns(), vector))

    seen: list[float] = []
    with _sending(send):
        for _ in _until(seconds):
            try:
                sent_ns, _vector = wire.get(timeout=0.1)
            except queue.Empty:
                continue
            seen.append((time.monotonic_ns() - sent_ns) / 1e9)
    wire.close()
    return Latencies(seen)
