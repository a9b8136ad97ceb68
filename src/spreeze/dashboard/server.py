"""The server: the page on a local port, with limits on who may hold a connection and for how long."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Iterator
from pathlib import Path

import cloudpickle
import setproctitle
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from spreeze.dashboard.access import Access
from spreeze.dashboard.app import Page
from spreeze.machine.affinity import run_in_background

MAX_CONNECTIONS = 160
REQUEST_LIMIT_S = 10.0
"""A request must be there this long after its connection, whole."""
HEADER_BYTES, SEND_BYTES = 16 << 10, 64 << 10


class LimitedHTTPProtocol(H11Protocol):
    """HTTP/1.1 that does not wait for ever and does not buffer without end."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Take a connection, if there are not too many."""
        super().connection_made(transport)
        self.app_state = {"abort": transport.abort}
        transport.set_write_buffer_limits(SEND_BYTES)
        sock = transport.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BYTES)
        self._deadline: asyncio.TimerHandle | None = None
        self._expect_request()
        if len(self.connections) > MAX_CONNECTIONS:
            transport.abort()

    def data_received(self, data: bytes) -> None:
        """Take a part of a request: what has begun must be whole in time, however many parts it has."""
        super().data_received(data)
        if self.cycle is None or self.cycle.response_complete:
            self._expect_request()
        else:
            self._stop_waiting()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget it."""
        self._stop_waiting()
        super().connection_lost(exc)

    def _expect_request(self) -> None:
        if self._deadline is None:
            self._deadline = self.loop.call_later(REQUEST_LIMIT_S, self.transport.abort)

    def _stop_waiting(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None


class Server(uvicorn.Server):
    """A server that tells its pages how it ended, and leaves the signals of its process alone if asked to."""

    def __init__(self, config: uvicorn.Config, page: Page, handles_signals: bool) -> None:
        """Serve `page`, the application of `config`."""
        super().__init__(config)
        self._page, self._handles_signals = page, handles_signals

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Ctrl-C ends the command; in a run the supervisor alone decides."""
        with super().capture_signals() if self._handles_signals else contextlib.nullcontext():
            yield

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Let the pages go before their connections."""
        await self._page.channels.end()
        await super().shutdown(sockets)


def make_server(page: Page, access: Access, handles_signals: bool = True) -> Server:
    """The page as a server, to be run on a listening socket."""
    config = uvicorn.Config(
        page.app(access),
        http=LimitedHTTPProtocol,
        ws="none",
        loop="asyncio",
        lifespan="off",
        log_level="error",  # what strangers send is not worth a line each
        access_log=False,  # addresses have the token in them
        server_header=False,
        proxy_headers=False,
        h11_max_incomplete_event_size=HEADER_BYTES,
        timeout_keep_alive=20,
        timeout_graceful_shutdown=1,
    )
    return Server(config, page, handles_signals)


def serve(page: Page, access: Access, listening: socket.socket) -> None:
    """Serve the page until Ctrl-C."""
    make_server(page, access).run([listening])


def observer_main(payload: bytes, _report_fd: int, ending_fd: int, socket_fd: int) -> int:
    """The page of a run, as a process beside it; ends when the supervisor closes its end of the pipe."""
    run_path, access, learner_cores = cloudpickle.loads(payload)
    setproctitle.setproctitle(f"spreeze dashboard {run_path.name}")
    run_in_background(learner_cores)
    asyncio.run(_beside_a_run(run_path, access, ending_fd, socket.socket(fileno=socket_fd)))
    return 0


async def _beside_a_run(
    run_path: Path, access: Access, ending_fd: int, listening: socket.socket
) -> None:
    server = make_server(Page(run_path.parent, run_path.name), access, handles_signals=False)

    def over() -> None:
        loop.remove_reader(ending_fd)
        server.should_exit = True

    loop = asyncio.get_running_loop()
    loop.add_reader(ending_fd, over)
    await server.serve([listening])
