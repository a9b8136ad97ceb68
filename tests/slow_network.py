"""Hosts for tests: network namespaces, each behind a wire in user space that delays, loses, limits or cuts.

The kernel's own emulation (netem) is a module that many machines lack; TAP devices are nearly everywhere. Needs root.

    python slow_network.py HOSTS    makes namespaces spz1, spz2, ... with the addresses 10.77.0.11, 10.77.0.12, ...

Commands come on standard input and hold for all wires: `delay SECONDS`, `loss SHARE`, `rate BYTES_PER_S`, `cut`, `heal`.
At the end of its input it removes everything.
"""

from __future__ import annotations

import fcntl
import heapq
import os
import random
import select
import shutil
import struct
import subprocess
import sys
import threading
import time
from contextlib import suppress

HEAD = "10.77.0.1"
TUNSETIFF, IFF_TAP_WITHOUT_HEADER = 0x400454CA, 0x1002
QUEUE_S = 2.0
"""What would wait longer than this for a slow wire is lost, as in a router with a full buffer."""


def address(host: int) -> str:
    return f"10.77.0.{10 + host}"


def missing() -> str | None:
    """Why there can be no such network here; None if there can."""
    if shutil.which("ip") is None:
        return "needs the command ip (iproute2)"
    if os.geteuid() != 0:
        return "network namespaces need root"
    if not os.access("/dev/net/tun", os.R_OK | os.W_OK):
        return "needs /dev/net/tun"
    made = subprocess.run(["ip", "netns", "add", "spz-try"], capture_output=True, check=False)
    subprocess.run(["ip", "netns", "del", "spz-try"], capture_output=True, check=False)
    return "network namespaces are not allowed here" if made.returncode else None


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True)


def tap(name: str) -> int:
    fd = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(fd, TUNSETIFF, struct.pack("16sH14x", name.encode(), IFF_TAP_WITHOUT_HEADER))
    return fd


class Wires:
    """Moves frames between pairs of TAP devices."""

    def __init__(self, pairs: list[tuple[int, int]]) -> None:
        self.delay_s, self.loss, self.rate, self.is_cut = 0.0, 0.0, 0.0, False
        self._other = {a: b for a, b in pairs} | {b: a for a, b in pairs}
        self._waiting: list[tuple[float, int, int, bytes]] = []
        self._free_s = dict.fromkeys(self._other, 0.0)
        """When each direction has sent all that it has taken."""
        threading.Thread(target=self._work, daemon=True).start()

    def _work(self) -> None:
        number = 0
        while True:
            due = self._waiting[0][0] - time.monotonic() if self._waiting else 1.0
            for fd in select.select(list(self._other), [], [], max(due, 0.0))[0]:
                with suppress(BlockingIOError):
                    number += 1
                    self._take(fd, os.read(fd, 65_536), number)
            while self._waiting and self._waiting[0][0] <= time.monotonic():
                _, _, to, frame = heapq.heappop(self._waiting)
                with suppress(OSError):
                    os.write(to, frame)

    def _take(self, fd: int, frame: bytes, number: int) -> None:
        now = time.monotonic()
        if self.is_cut or random.random() < self.loss:
            return
        if self.rate:
            self._free_s[fd] = max(self._free_s[fd], now) + len(frame) / self.rate
            if self._free_s[fd] - now > QUEUE_S:
                self._free_s[fd] -= len(frame) / self.rate
                return
        due = max(self._free_s[fd], now) + self.delay_s
        heapq.heappush(self._waiting, (due, number, self._other[fd], frame))


def remove(hosts: int) -> None:
    for i in range(1, hosts + 1):
        subprocess.run(["ip", "netns", "del", f"spz{i}"], capture_output=True, check=False)
    subprocess.run(["ip", "link", "del", "spzbr"], capture_output=True, check=False)


def main(hosts: int) -> None:
    remove(hosts)  # what a killed process has left
    ip("link", "add", "spzbr", "type", "bridge")
    ip("addr", "add", f"{HEAD}/24", "dev", "spzbr")
    ip("link", "set", "spzbr", "up")
    pairs = []
    for i in range(1, hosts + 1):
        pairs.append((tap(f"spzr{i}"), tap(f"spzh{i}")))
        ip("netns", "add", f"spz{i}")
        ip("link", "set", f"spzr{i}", "master", "spzbr", "up")
        ip("link", "set", f"spzh{i}", "netns", f"spz{i}")
        ip("-n", f"spz{i}", "link", "set", "lo", "up")
        ip("-n", f"spz{i}", "addr", "add", f"{address(i)}/24", "dev", f"spzh{i}")
        ip("-n", f"spz{i}", "link", "set", f"spzh{i}", "up")
    wires = Wires(pairs)
    print("ready", flush=True)
    for line in sys.stdin:
        command, *value = line.split()
        if command in ("cut", "heal"):
            wires.is_cut = command == "cut"
        else:
            setattr(wires, {"delay": "delay_s"}.get(command, command), float(value[0]))
        print("done", flush=True)
    remove(hosts)


if __name__ == "__main__":
    main(int(sys.argv[1]))
