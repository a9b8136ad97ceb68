"""Server-sent events: each run is read once a second, however many pages show it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import MutableMapping
from typing import Any

from starlette.responses import Response

from spreeze.dashboard.access import Receive, Scope, Send
from spreeze.dashboard.runs import StoredRun
from spreeze.dashboard.tail import RunTail

READ_EVERY_S, FRAME_EVERY_S, KEEPALIVE_EVERY_S = 1.0, 0.2, 15.0
SEND_LIMIT_S = 10.0
"""A page that takes longer than this to accept a message is dropped."""
MAX_PAGES = 64


class RunFeed:
    """The messages about one run for all pages that show it."""

    def __init__(self, run: StoredRun) -> None:
        """Prepare to read `run`. Nothing is read before the first page subscribes."""
        self.tail = RunTail(run)
        self.pages = 0
        self.number = 0
        """Number of the newest message. A page that missed one is sent a snapshot."""
        self.message = b""
        self._changed = asyncio.Condition()
        self._task: asyncio.Task[None] | None = None
        self._frame = 0

    def snapshot(self) -> bytes:
        """Everything so far, as one message."""
        return _message(self.tail.snapshot() | {"frame": self._frame})

    async def wait_after(self, number: int) -> None:
        """Wait until there is a message newer than `number`."""
        async with self._changed:
            await self._changed.wait_for(lambda: self.number > number)

    async def subscribe(self) -> None:
        """Add a page. The first one starts the reading."""
        self.pages += 1
        if self._task is None:
            while self.tail.poll()[1]:
                await asyncio.sleep(0)
            self._frame = self.tail.frame_stamp()
            if self._task is None:
                self._task = asyncio.create_task(self._watch())

    def unsubscribe(self) -> None:
        """Remove a page. Without pages the run is not read."""
        self.pages -= 1
        if self.pages == 0 and self._task is not None:
            self._task.cancel()
            self._task = None

    async def publish_changes(self) -> None:
        """Read the run and send what has changed."""
        changes, more = self.tail.poll()
        while more:
            await asyncio.sleep(0)
            rest, more = self.tail.poll()
            changes = self.tail.snapshot() if rest else changes
        await self._send(changes)

    async def _watch(self) -> None:
        read_s = time.monotonic()
        while True:
            await asyncio.sleep(FRAME_EVERY_S)
            if (stamp := self.tail.frame_stamp()) != self._frame:
                self._frame = stamp
                await self._send({"frame": stamp})
            if time.monotonic() - read_s >= READ_EVERY_S:
                read_s = time.monotonic()
                await self.publish_changes()

    async def _send(self, changes: dict[str, Any]) -> None:
        if changes:
            async with self._changed:
                self.number += 1
                self.message = _message(changes)
                self._changed.notify_all()


class EventHub:
    """The feeds of all runs that are shown on a page."""

    def __init__(self) -> None:
        """No page is open yet."""
        self._feeds: dict[str, RunFeed] = {}
        self.ending = asyncio.Event()

    @property
    def num_pages(self) -> int:
        """Open pages of all runs."""
        return sum(feed.pages for feed in self._feeds.values())

    @property
    def full(self) -> bool:
        """Whether another page would be too many."""
        return self.num_pages >= MAX_PAGES

    def stream(self, run: StoredRun) -> EventStream:
        """The response for a page that shows `run`."""
        feed = self._feeds.get(run.id)
        if feed is None or feed.pages == 0:
            feed = self._feeds[run.id] = RunFeed(run)
        return EventStream(feed, self.ending)

    async def end(self) -> None:
        """Send every page the last changes, then close its stream."""
        for feed in self._feeds.values():
            if feed.pages:
                with contextlib.suppress(Exception):
                    await feed.publish_changes()
        await asyncio.sleep(0.05)
        self.ending.set()


class EventStream(Response):
    """Server-sent events for one page: a snapshot, then changes."""

    def __init__(self, feed: RunFeed, ending: asyncio.Event) -> None:
        """Send the messages of `feed` until `ending` is set."""
        super().__init__(media_type="text/event-stream")
        self._feed, self._ending = feed, ending

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send until the page is gone or too slow, or the server ends."""
        headers = [(b"content-type", b"text/event-stream; charset=utf-8")]
        gone = asyncio.create_task(_disconnected(receive))
        over = asyncio.create_task(self._ending.wait())
        await self._feed.subscribe()
        try:
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            await self._send_messages(send, {gone, over})
            await send({"type": "http.response.body", "body": b""})
        except TimeoutError:
            scope["state"]["abort"]()
            await asyncio.sleep(0)
        finally:
            self._feed.unsubscribe()
            gone.cancel()
            over.cancel()

    async def _send_messages(self, send: Send, ends: set[asyncio.Task[Any]]) -> None:
        """Send messages until one of the tasks in `ends` is done."""
        feed = self._feed
        number, message = feed.number, feed.snapshot()
        while True:
            async with asyncio.timeout(SEND_LIMIT_S):
                await send(_body(message))
            newer = asyncio.create_task(feed.wait_after(number))
            done, _ = await asyncio.wait(
                {newer, *ends}, timeout=KEEPALIVE_EVERY_S, return_when=asyncio.FIRST_COMPLETED
            )
            newer.cancel()
            if newer in done:
                message = feed.message if feed.number == number + 1 else feed.snapshot()
                number = feed.number
            elif done:
                return
            else:
                message = b": keepalive\n\n"


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _body(message: bytes) -> MutableMapping[str, Any]:
    return {"type": "http.response.body", "body": message, "more_body": True}


def _message(value: Any) -> bytes:
    return b"data: " + json.dumps(value, allow_nan=False).encode() + b"\n\n"
