"""The outposts of a run, as the learner's machine sees them: who joins, who has left, what is in flight.

The cluster is an interface, so the rules here are tested without Ray.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, NamedTuple, Protocol

from spreeze.roles.relay.messages import Invitation, Orders, Report, skew, versions
from spreeze.user_code import allowed

IN_FLIGHT = 2
"""Calls for blocks that each outpost has: while one block travels, it fills the next."""
RETRY_S = (1.0, 5.0, 30.0)
"""The delay before an outpost that was lost is started again, if its node is still there."""
LEAVE_S = 2.0
"""How long outposts may take to remove what they have made."""
WAITS_S = 15.0
"""An outpost that has not started by then waits for CPUs of its node."""


class Lost(RuntimeError):
    """An outpost or its node has gone."""


class Unreadable(RuntimeError):
    """An outpost cannot read what it is sent, because of the software on its node."""


class BlockLost(RuntimeError):
    """An answer was lost on its way; its outpost is there."""


class Node(NamedTuple):
    """A machine of the cluster."""

    id: str
    name: str
    cpus: int


class Cluster(Protocol):
    """What carries calls to outposts."""

    def nodes(self) -> dict[str, Node]:
        """The nodes that outposts may run on now, by id."""

    def start(self, node: Node) -> Any:
        """Have an outpost started on a node; returns its handle at once."""

    def call(self, outpost: Any, method: str, *arguments: Any) -> Any:
        """Call a method of an outpost; returns a ticket at once."""

    def answered(self, tickets: list[Any], timeout_s: float) -> list[Any]:
        """Those of the tickets that have an answer; waits for one up to `timeout_s`."""

    def answer(self, ticket: Any) -> Any:
        """The answer to a call; Lost, Unreadable or BlockLost without one."""

    def put(self, value: Any) -> Any:
        """Store a value once, for calls to any number of outposts."""

    def end(self, outpost: Any) -> None:
        """End an outpost, whatever it does."""

    def close(self) -> None:
        """End all that was started here."""


NOTHING = Report(None)
"""What an outpost has reported before its first report."""


class State(StrEnum):
    """How far an outpost is."""

    STARTING = "starting"
    JOINING = "joining"
    SAMPLING = "sampling"
    REFUSED = "refused"
    LOST = "lost"


@dataclass
class Post:
    """An outpost, and what is known of it."""

    node: Node
    machine: int
    handle: Any
    began_s: float
    state: State = State.STARTING
    why: str = ""
    """Why it was refused or lost."""
    pending: deque[tuple[Any, float]] = field(default_factory=deque)
    """Tickets of calls without an answer, and when each was made."""
    report: Report = NOTHING
    """The newest."""
    weights_sent: int = 0
    calls_sent: int = 0
    """The version of the policy and the number of the environment calls that it was sent last."""
    evaluation_sent: int = 0


class Fleet:
    """All outposts of a run."""

    def __init__(
        self,
        cluster: Cluster,
        invite: Callable[[Node, int], Invitation],
        say: Callable[[str], None],
        machines: int = 0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`machines`: how many outposts were started before, by a relay before this one."""
        self.posts: dict[str, Post] = {}
        """By the id of the node; those refused and lost too, as long as their node is there."""
        self.machines, self.num_lost, self.num_refused = machines, 0, 0
        self.blocks_lost = 0
        self._cluster, self._invite, self._say, self._clock = cluster, invite, say, clock
        self._failures: dict[str, int] = {}
        self._retry_at_s: dict[str, float] = {}
        self._past_steps = self._past_episodes = self._past_lost = 0

    @property
    def sampling(self) -> list[Post]:
        """The outposts that sample."""
        return [post for post in self.posts.values() if post.state is State.SAMPLING]

    @property
    def num_in_flight(self) -> int:
        """Calls for blocks without an answer."""
        return sum(len(post.pending) for post in self.sampling)

    @property
    def env_steps(self) -> int:
        """Env steps of all outposts so far, those that have left included."""
        return self._past_steps + sum(post.report.env_steps for post in self.posts.values())

    @property
    def episodes(self) -> int:
        """Episodes of all outposts so far."""
        return self._past_episodes + sum(post.report.episodes for post in self.posts.values())

    @property
    def rows_lost(self) -> int:
        """Rows that were overwritten on the nodes."""
        return self._past_lost + sum(post.report.rows_lost for post in self.posts.values())

    def look_for_nodes(self) -> None:
        """Start an outpost on each new node, and forget those whose node has left."""
        nodes, now = self._cluster.nodes(), self._clock()
        for gone in [id for id in self.posts if id not in nodes]:
            if self.posts[gone].state not in (State.REFUSED, State.LOST):
                self._lose(self.posts[gone], "its node has left")
            self._forget(gone)
        for id, node in nodes.items():
            post = self.posts.get(id)
            if post is not None and post.state is State.LOST and now >= self._retry_at_s[id]:
                self._forget(id)
                post = None
            if post is None:
                self._start(node)
            elif post.state is State.STARTING and now - post.began_s > WAITS_S and not post.why:
                post.why = f"waits for {node.cpus} free CPUs of its node"
                self._say(f"{node.name} {post.why}")

    def send(self, orders: Callable[[Post], tuple[Orders, Any, Any]]) -> None:
        """Ask every outpost for blocks, up to `IN_FLIGHT` each."""
        for post in self.sampling:
            while len(post.pending) < IN_FLIGHT:
                self._call(post, "take", *orders(post))

    def receive(self, timeout_s: float) -> list[tuple[Post, Report, float]]:
        """The reports that have come in, and how long each has taken; waits for one up to `timeout_s`."""
        by_ticket = {
            ticket: (post, sent_s)
            for post in self.posts.values()
            for ticket, sent_s in list(post.pending)[:1]  # an outpost answers in order
        }
        if not by_ticket:
            time.sleep(timeout_s)
            return []
        reports = []
        for ticket in self._cluster.answered(list(by_ticket), timeout_s):
            post, sent_s = by_ticket[ticket]
            if not post.pending:
                continue  # it was lost meanwhile
            post.pending.popleft()
            try:
                answer = self._cluster.answer(ticket)
            except BlockLost:
                self.blocks_lost += 1
            except Lost as error:
                self._lose(post, str(error))
            except Unreadable as error:
                self._refuse(post, str(error))
            else:
                if (report := self._heard(post, answer)) is not None:
                    reports.append((post, report, self._clock() - sent_s))
        return reports

    def close(self) -> None:
        """Have all outposts leave, end those that do not, and leave the cluster."""
        leaving = [self._cluster.call(post.handle, "leave") for post in self.sampling]
        deadline = time.monotonic() + LEAVE_S
        while leaving and (left_s := deadline - time.monotonic()) > 0:
            answered = self._cluster.answered(leaving, left_s)
            leaving = [ticket for ticket in leaving if ticket not in answered]
        for post in self.posts.values():
            self._cluster.end(post.handle)
        self._cluster.close()

    def _start(self, node: Node) -> None:
        self.machines += 1
        post = Post(node, self.machines, self._cluster.start(node), self._clock())
        self.posts[node.id] = post
        self._call(post, "hello", allowed())

    def _call(self, post: Post, method: str, *arguments: Any) -> None:
        ticket = self._cluster.call(post.handle, method, *arguments)
        post.pending.append((ticket, self._clock()))

    def _heard(self, post: Post, answer: Any) -> Report | None:
        """Take an answer; returns it if it is a report."""
        if post.state is State.STARTING:
            if (differing := skew(answer, versions())) is not None:
                self._refuse(post, differing)
            else:
                post.state, post.why = State.JOINING, ""
                self._call(post, "join", self._invite(post.node, post.machine))
        elif post.state is State.JOINING:
            if answer is not None:
                self._refuse(post, str(answer))
            else:
                post.state = State.SAMPLING
                self._say(f"{post.node.name} samples now")
        elif post.state is State.SAMPLING:
            self._failures[post.node.id] = 0
            post.report = answer._replace(block=None)  # which may be memory of the cluster
            if answer.failure is not None:
                self._lose(post, answer.failure)
            return answer  # type: ignore[no-any-return]
        return None

    def _refuse(self, post: Post, why: str) -> None:
        """It may not join, and is not asked again: its software has to change first."""
        self.num_refused += 1
        self._end(post, State.REFUSED, why)
        self._say(f"{post.node.name} was refused: {why}")

    def _lose(self, post: Post, why: str) -> None:
        id = post.node.id
        failures = self._failures.get(id, 0)
        self._failures[id] = failures + 1
        self._retry_at_s[id] = self._clock() + RETRY_S[min(failures, len(RETRY_S) - 1)]
        self.num_lost += 1
        self._end(post, State.LOST, why)
        self._say(f"{post.node.name} was lost: {why}")

    def _end(self, post: Post, state: State, why: str) -> None:
        post.state, post.why = state, why
        post.pending.clear()
        self._cluster.end(post.handle)

    def _forget(self, id: str) -> None:
        report = self.posts.pop(id).report
        self._past_steps += report.env_steps
        self._past_episodes += report.episodes
        self._past_lost += report.rows_lost
