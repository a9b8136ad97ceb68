"""What open pages cost: one run, in turns with ten listening clients and with none.

    python bench/dashboard_cost.py [ENV SECONDS CLIENTS]     default: HalfCheetah-v5 120 10

A turn takes 5 s; its first second does not count. The order is none, ten, ten, none, so a drift of
the run affects both kinds alike. Prints updates and env steps per second of both kinds and their
ratios. Run it on an idle machine.
"""

import contextlib
import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median

TURN_S, SETTLE_S = 5.0, 1.0
ORDER = (False, True, True, False)


class Client(threading.Thread):
    """An open page: listens to the events of a run and fetches each picture, as a browser does."""

    def __init__(self, port: int, token: str, run: str) -> None:
        """Connect and start listening."""
        super().__init__(daemon=True)
        self.port, self.run_id, self.num_bytes = port, run, 0
        self.ask = f"HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {token}\r\n\r\n"
        self.socket = socket.create_connection(("127.0.0.1", port))
        self.start()

    def run(self) -> None:
        """Read until closed."""
        with contextlib.suppress(OSError):
            self.socket.sendall(f"GET /api/runs/{self.run_id}/events {self.ask}".encode())
            while data := self.socket.recv(1 << 16):
                self.num_bytes += len(data)
                if b'"frame"' in data:
                    self.fetch_picture()

    def fetch_picture(self) -> None:
        """Request the newest picture."""
        with socket.create_connection(("127.0.0.1", self.port)) as sock:
            head = self.ask.replace("\r\n\r\n", "\r\nConnection: close\r\n\r\n")
            sock.sendall(f"GET /api/runs/{self.run_id}/frame {head}".encode())
            while data := sock.recv(1 << 16):
                self.num_bytes += len(data)

    def close(self) -> None:
        """Close the connection."""
        with contextlib.suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)
        self.join()
        self.socket.close()


@contextlib.contextmanager
def training(env: str, seconds: float, folder: str) -> Iterator[Path]:
    """Start a run in the background; yields its directory."""
    command = ["-m", "spreeze", "train", env, "--time", f"{seconds}s", "--runs", folder]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    process = subprocess.Popen([sys.executable, *command, "--name", "r"], **quiet)
    os.nice(19)  # the server is measured, not these clients; a browser would run elsewhere
    try:
        yield Path(folder) / "r"
    finally:
        process.terminate()
        process.wait()


def status(run: Path) -> dict:
    """The contents of status.json; empty before the run has started."""
    with contextlib.suppress(OSError, ValueError):
        return json.loads((run / "status.json").read_text())
    return {}


def counts(run: Path) -> tuple[float, float, float]:
    """Time, updates and env steps in the last status of the run."""
    progress = status(run)["progress"]
    return progress["time_s"], progress["updates"], progress["env_steps"]


def main() -> None:
    """Measure in turns and print the ratios."""
    env, seconds, num = (*sys.argv[1:], *["HalfCheetah-v5", "120", "10"][len(sys.argv) - 1 :])
    rates: dict[bool, list[tuple[float, float]]] = {False: [], True: []}
    with (
        tempfile.TemporaryDirectory() as folder,
        training(env, float(seconds) + 120, folder) as run,
    ):
        while status(run).get("progress", {}).get("updates", 0) < 100:
            time.sleep(0.5)
        time.sleep(20)  # time for the update to be compiled
        port = int(status(run)["dashboard"]["url"].rstrip("/").rpartition(":")[2])
        token = (run / "dashboard.token").read_text().strip()
        run_id = find_id(port, token)
        read = 0
        for turn in range(int(float(seconds) // TURN_S)):
            watched = ORDER[turn % len(ORDER)]
            clients = [Client(port, token, run_id) for _ in range(int(num) if watched else 0)]
            time.sleep(SETTLE_S)
            began = counts(run)
            time.sleep(TURN_S - SETTLE_S)
            ended = counts(run)
            for client in clients:
                client.close()
                read += client.num_bytes
            passed = ended[0] - began[0]
            rates[watched].append(((ended[1] - began[1]) / passed, (ended[2] - began[2]) / passed))
    print(f"{env}, {num} pages in every second pair of turns, {read / 1e6:.1f} MB read by them")
    for i, name in enumerate(("updates/s", "env steps/s")):
        none, ten = (median(rate[i] for rate in rates[kind]) for kind in (False, True))
        print(f"{name:12} none {none:10,.1f}   {num} pages {ten:10,.1f}   ratio {ten / none:.4f}")


def find_id(port: int, token: str) -> str:
    """The id of the run on the page."""
    from urllib.request import Request, urlopen

    address = f"http://127.0.0.1:{port}/api/runs"
    with urlopen(Request(address, headers={"Authorization": f"Bearer {token}"})) as answer:
        return json.load(answer)["first"]


if __name__ == "__main__":
    main()
