"""Channels: one look at a run per second, sent to however many pages are open on it."""

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

LOOK_EVERY_S, FRAME_EVERY_S, HELLO_EVERY_S = 1.0, 0.2, 15.0
SEND_LIMIT_S = 10.0
"""A page that takes longer than this to take a message is not being looked at."""
MAX_PAGES = 64


class Channel:
    """One run, as it is told to its pages."""

    def __init__(self, run: StoredRun) -> None:
        """Nothing was told yet."""
        self.following = RunTail(run)
        self.pages = 0
        self.number = 0
        """Of the newest message; a page that missed one gets everything anew."""
        self.message = b""
        self._news = asyncio.Condition()
        self._task: asyncio.Task[None] | None = None
        self._frame = 0

    def whole(self) -> bytes:
        """Everything so far, as one message."""
        return _message(self.following.whole() | {"frame": self._frame})

    async def next(self, number: int) -> None:
        """Wait until there is a message after `number`."""
        async with self._news:
            await self._news.wait_for(lambda: self.number > number)

    async def enter(self) -> None:
        """One page more; the first one has the run looked at."""
        self.pages += 1
        if self._task is None:
            while self.following.look()[1]:
                await asyncio.sleep(0)
            self._frame = self.following.frame_stamp()
            if self._task is None:
                self._task = asyncio.create_task(self._watch())

    def leave(self) -> None:
        """One page less; without pages nobody looks."""
        self.pages -= 1
        if self.pages == 0 and self._task is not None:
            self._task.cancel()
            self._task = None

    async def tell(self) -> None:
        """Look, and send what is new."""
        news, more = self.following.look()
        while more:
            await asyncio.sleep(0)
            rest, more = self.following.look()
            news = self.following.whole() if rest else news
        await self._send(news)

    async def _watch(self) -> None:
        looked_s = time.monotonic()
        while True:
            await asyncio.sleep(FRAME_EVERY_S)
            if (stamp := self.following.frame_stamp()) != self._frame:
                self._frame = stamp
                await self._send({"frame": stamp})
            if time.monotonic() - looked_s >= LOOK_EVERY_S:
                looked_s = time.monotonic()
                await self.tell()

    async def _send(self, news: dict[str, Any]) -> None:
        if news:
            async with self._news:
                self.number += 1
                self.message = _message(news)
                self._news.notify_all()


class Channels:
    """The channels of all runs that somebody looks at."""

    def __init__(self) -> None:
        """Nobody looks yet."""
        self._open: dict[str, Channel] = {}
        self.ending = asyncio.Event()

    @property
    def full(self) -> bool:
        """Whether no page more may open."""
        return sum(channel.pages for channel in self._open.values()) >= MAX_PAGES

    def stream(self, run: StoredRun) -> Stream:
        """What a page listens to."""
        channel = self._open.get(run.id)
        if channel is None or channel.pages == 0:
            channel = self._open[run.id] = Channel(run)
        return Stream(channel, self.ending)

    async def end(self) -> None:
        """Tell every page how it ended, then let it go."""
        for channel in self._open.values():
            if channel.pages:
                with contextlib.suppress(Exception):
                    await channel.tell()
        await asyncio.sleep(0.05)
        self.ending.set()


class Stream(Response):
    """Server-sent events: the whole, then what is new, until one side has enough."""

    def __init__(self, channel: Channel, ending: asyncio.Event) -> None:
        """Listen to `channel`."""
        super().__init__(media_type="text/event-stream")
        self._channel, self._ending = channel, ending

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send until the page is gone, too slow, or there is nothing more to say."""
        headers = [(b"content-type", b"text/event-stream; charset=utf-8")]
        gone = asyncio.create_task(_disconnected(receive))
        over = asyncio.create_task(self._ending.wait())
        await self._channel.enter()
        try:
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            await self._talk(send, {gone, over})
            await send({"type": "http.response.body", "body": b""})
        except TimeoutError:
            scope["state"]["abort"]()
            await asyncio.sleep(0)
        finally:
            self._channel.leave()
            gone.cancel()
            over.cancel()

    async def _talk(self, send: Send, ends: set[asyncio.Task[Any]]) -> None:
        channel = self._channel
        number, message = channel.number, channel.whole()
        while True:
            async with asyncio.timeout(SEND_LIMIT_S):
                await send(_body(message))
            news = asyncio.create_task(channel.next(number))
            done, _ = await asyncio.wait(
                {news, *ends}, timeout=HELLO_EVERY_S, return_when=asyncio.FIRST_COMPLETED
            )
            news.cancel()
            if news in done:
                message = channel.message if channel.number == number + 1 else channel.whole()
                number = channel.number
            elif done:
                return
            else:
                message = b": still here\n\n"


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _body(message: bytes) -> MutableMapping[str, Any]:
    return {"type": "http.response.body", "body": message, "more_body": True}


def _message(value: Any) -> bytes:
    return b"data: " + json.dumps(value, allow_nan=False).encode() + b"\n\n"
