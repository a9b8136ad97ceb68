"""The web server, with limits on the number and duration of connections."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Iterator

import cloudpickle
import setproctitle
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from spreeze.dashboard.access import Access
from spreeze.dashboard.app import Page
from spreeze.machine.affinity import run_in_background

MAX_CONNECTIONS = 160
REQUEST_LIMIT_S = 10.0
"""A request must be complete this long after the connection or the previous request."""
MAX_HEADER_BYTES, SEND_BUFFER_BYTES = 16 << 10, 64 << 10


class LimitedHTTPProtocol(H11Protocol):
    """HTTP/1.1 with limits on waiting and buffering."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Accept a connection, or drop it if there are too many."""
        super().connection_made(transport)
        self.app_state = {"abort": transport.abort}
        transport.set_write_buffer_limits(SEND_BUFFER_BYTES)
        sock = transport.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
        self._deadline: asyncio.TimerHandle | None = None
        self._expect_request()
        if len(self.connections) > MAX_CONNECTIONS:
            transport.abort()

    def data_received(self, data: bytes) -> None:
        """Receive a part of a request. The deadline is for the whole request, however many parts it has."""
        super().data_received(data)
        if self.cycle is None or self.cycle.response_complete:
            self._expect_request()
        else:
            self._stop_waiting()

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel the deadline."""
        self._stop_waiting()
        super().connection_lost(exc)

    def _expect_request(self) -> None:
        if self._deadline is None:
            self._deadline = self.loop.call_later(REQUEST_LIMIT_S, self.transport.abort)

    def _stop_waiting(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None


class PageServer(uvicorn.Server):
    """A server that sends its pages the last changes before it ends."""

    def __init__(self, config: uvicorn.Config, page: Page, handles_signals: bool) -> None:
        """Serve `page`, the application of `config`. Without `handles_signals`, Ctrl-C is left to others."""
        super().__init__(config)
        self._page, self._handles_signals = page, handles_signals

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Ctrl-C ends the command. Beside a run, only the supervisor ends the server."""
        with super().capture_signals() if self._handles_signals else contextlib.nullcontext():
            yield

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Close the event streams, then the connections."""
        await self._page.events.end()
        await super().shutdown(sockets)


def make_server(page: Page, access: Access, handles_signals: bool = True) -> PageServer:
    """A server for the page, to be run on a listening socket."""
    config = uvicorn.Config(
        page.app(access),
        http=LimitedHTTPProtocol,
        ws="none",
        loop="asyncio",
        lifespan="off",
        log_level="error",  # malformed requests are not worth a line each
        access_log=False,  # addresses contain the token
        server_header=False,
        proxy_headers=False,
        h11_max_incomplete_event_size=MAX_HEADER_BYTES,
        timeout_keep_alive=20,
        timeout_graceful_shutdown=1,
    )
    return PageServer(config, page, handles_signals)


def serve(page: Page, access: Access, listening: socket.socket) -> None:
    """Serve the page until Ctrl-C."""
    make_server(page, access).run([listening])


def observer_main(payload: bytes, _report_fd: int, ending_fd: int, socket_fd: int) -> int:
    """Serve the page of a run or a sweep from a separate process, until the other end of a pipe is closed."""
    folder, first, access, learner_cores = cloudpickle.loads(payload)
    setproctitle.setproctitle(f"spreeze dashboard {first or folder.name}")
    run_in_background(learner_cores)
    page = Page(folder, first)
    asyncio.run(_until_closed(page, access, ending_fd, socket.socket(fileno=socket_fd)))
    return 0


async def _until_closed(
    page: Page, access: Access, ending_fd: int, listening: socket.socket
) -> None:
    server = make_server(page, access, handles_signals=False)

    def over() -> None:
        loop.remove_reader(ending_fd)
        server.should_exit = True

    loop = asyncio.get_running_loop()
    loop.add_reader(ending_fd, over)
    await server.serve([listening])
