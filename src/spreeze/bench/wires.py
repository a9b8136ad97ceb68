"""How fast the wires are: rows against a queue and a pipe, policies against a file and a queue.

One process sends and this one reads, one way after the other and round again. Whatever is sent is one
number all over, so that half of one sending beside half of another is seen: that would be a torn read.
"""

from __future__ import annotations

import multiprocessing
import os
import queue
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from spreeze.machine.lifeline import die_with_parent
from spreeze.rows import Layout, as_matrix
from spreeze.spec import Floats
from spreeze.store.files import replace_bytes
from spreeze.wires.arena import Arena
from spreeze.wires.experience import Experience, experience_blocks
from spreeze.wires.weights import Weights, weights_blocks

BLOCK, LANE_ROWS, DRAIN_ROWS = 32, 65_536, 8192
NUM_WEIGHTS = 73_484
"""The policy of HalfCheetah-v5 with two layers of 256."""
PUBLISH_EVERY_S = 0.002
TURNS = 3
FORK = multiprocessing.get_context("fork")


def measure(layout: Layout, seconds: float) -> dict[str, Any]:
    """Rows per second and latencies of each way, in turns."""
    rows: dict[str, list[float]] = {"wire": [], "queue": [], "pipe": []}
    latencies: dict[str, list[float]] = {"wire": [], "file": [], "queue": []}
    torn = lost = 0
    share = seconds / (TURNS * (len(rows) + len(latencies)))
    for _ in range(TURNS):
        for name, way in (("wire", _lane), ("queue", _row_queue), ("pipe", _row_pipe)):
            received, bad, gone = way(layout, share)
            rows[name].append(received / share)
            torn, lost = torn + bad, lost + gone
        for name, listen in (("wire", _weights), ("file", _file), ("queue", _policy_queue)):
            seen, bad = listen(share)
            latencies[name].append(median(seen))
            torn += bad
    hz = {name: median(values) for name, values in rows.items()}
    us = {name: 1e6 * median(values) for name, values in latencies.items()}
    return {
        "row_bytes": layout.row_bytes,
        "rows_hz": hz["wire"],
        "bytes_hz": hz["wire"] * layout.row_bytes,
        "queue_rows_hz": hz["queue"],
        "pipe_rows_hz": hz["pipe"],
        "rows_overwritten": lost,
        "weights_bytes": 4 * NUM_WEIGHTS,
        "latency_us": us["wire"],
        "file_latency_us": us["file"],
        "queue_latency_us": us["queue"],
        "torn_reads": torn,
    }


@contextmanager
def _sending(send: Callable[[], None]) -> Iterator[None]:
    """A process that sends again and again, for the length of the block."""
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
    """Lines that are not one number all over."""
    return int((lines != lines[:, :1]).any(1).sum())


def _until(seconds: float) -> Iterator[None]:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        yield


def _lane(layout: Layout, seconds: float) -> tuple[int, int, int]:
    arena = Arena.create(experience_blocks(layout, 1, LANE_ROWS, BLOCK))
    wire, number = Experience(arena, BLOCK), np.zeros(1)
    writer, (reader,) = wire.writer(0), wire.readers(as_words=True)

    def send() -> None:
        number[0] = (number[0] + 1) % (1 << 20)
        as_matrix(writer.reserve())[:] = number[0]
        writer.commit(BLOCK)

    room = np.empty((DRAIN_ROWS, layout.width), np.uint32)
    received = torn = 0
    with _sending(send):
        for _ in _until(seconds):
            fresh = reader.drain(room)
            received += len(fresh)
            torn += _num_torn(fresh[:BLOCK].view(np.float32))
    arena.close()
    return received, torn, reader.num_lost


def _row_queue(layout: Layout, seconds: float) -> tuple[int, int, int]:
    wire = FORK.Queue(maxsize=64)
    rows = np.zeros((BLOCK, layout.width), np.float32)
    received = 0
    with _sending(lambda: wire.put(rows)):
        for _ in _until(seconds):
            try:
                received += len(wire.get(timeout=0.1))
            except queue.Empty:
                continue
    wire.close()
    return received, 0, 0


def _row_pipe(layout: Layout, seconds: float) -> tuple[int, int, int]:
    reading, writing = FORK.Pipe(duplex=False)
    rows = np.zeros(BLOCK * layout.width, np.float32)
    room = np.empty_like(rows)
    received = 0
    with _sending(lambda: writing.send_bytes(rows.data)):
        for _ in _until(seconds):
            if reading.poll(0.1):
                reading.recv_bytes_into(room)
                received += BLOCK
    reading.close()
    writing.close()
    return received, 0, 0


def _weights(seconds: float) -> tuple[list[float], int]:
    arena = Arena.create(weights_blocks(NUM_WEIGHTS))
    wire, vector = Weights(arena), np.zeros(NUM_WEIGHTS, np.float32)

    def send() -> None:
        time.sleep(PUBLISH_EVERY_S)
        vector[:] = (vector[0] + 1) % (1 << 20)
        wire.publish(vector, 0, time.monotonic_ns())

    room, version = np.zeros(NUM_WEIGHTS, np.float32), 0
    seen, torn = [], 0
    with _sending(send):
        for _ in _until(seconds):
            if (stamp := wire.fetch(room, version)) is not None:
                seen.append((time.monotonic_ns() - stamp.env_steps) / 1e9)
                version = stamp.version
                torn += _num_torn(room[None])
    arena.close()
    return seen, torn


def _file(seconds: float) -> tuple[list[float], int]:
    vector = np.zeros(NUM_WEIGHTS, np.float32)
    seen, newest, torn = [], 0, 0
    with TemporaryDirectory() as folder:
        path = Path(folder) / "policy"

        def send() -> None:
            time.sleep(PUBLISH_EVERY_S)
            vector[:] = (vector[0] + 1) % (1 << 20)
            replace_bytes(path, time.monotonic_ns().to_bytes(8, "little") + vector.tobytes())

        with _sending(send):
            for _ in _until(seconds):
                if path.exists() and (changed := path.stat().st_mtime_ns) != newest:
                    newest, data = changed, path.read_bytes()
                    torn += _num_torn(np.frombuffer(data, np.float32, offset=8)[None])
                    sent_ns = int.from_bytes(data[:8], "little")
                    seen.append((time.monotonic_ns() - sent_ns) / 1e9)
    return seen, torn


def _policy_queue(seconds: float) -> tuple[list[float], int]:
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
    return seen, 0
