"""The episodes of an evaluation, played by several processes at once.

Ten episodes of a slow environment take seconds, which delays the news that a policy is good. So this
process plays a share of the episodes, and forked workers play the rest. The episodes are the same for
any number of processes; only rounding differs, with the number of environments that act at once.
"""

from __future__ import annotations

import mmap
import os
import time
import traceback
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import accumulate
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

import numpy as np
import setproctitle
from numpy.typing import NDArray

from spreeze.envs.calls import EnvCall
from spreeze.envs.episodes import Episode
from spreeze.envs.guard import FAULT_WORDS, WORDS, EnvGuard
from spreeze.envs.stepping import Stepper, make_stepper, play_episodes
from spreeze.envs.targets import EnvTarget
from spreeze.errors import EnvBroken
from spreeze.faults import Doing
from spreeze.machine.lifeline import die_with_parent
from spreeze.policy import Policy
from spreeze.spec import EnvSpec, Floats

MAX_ENVS = 10
POLL_S = 0.005
CHECK_MESSAGES_S = 0.05
CLOSE_TIMEOUT_S = 2.0
"""How long workers may take to close their environments."""
TRACEBACK_CHARS = 60_000
"""Only the end of a traceback is sent: it must fit into the pipe, because the evaluator may not be reading yet."""

Request = tuple[Floats, int, Sequence[EnvCall]]
"""The policy to play, the seed of the first episode, and the newest calls into the environments."""


class Failure(NamedTuple):
    """Why a worker ended."""

    text: str
    """A traceback, or what EnvBroken says happened last."""
    given_up: str | None = None
    """Why its environments were given up; None for any other error."""


Episodes = list[list[Episode]]
"""The episodes of an evaluation, by environment."""
Answer = Episodes | Failure | None
"""The episodes of a request, a failure, or None: the worker has made its environments."""


class WorkerFailed(RuntimeError):
    """A worker ended with an error; the message is its traceback."""


class WorkerKilled(RuntimeError):
    """A worker ended without a message."""


@dataclass(frozen=True)
class Player:
    """What every process that plays episodes needs."""

    targets: Sequence[EnvTarget]
    """The environments that each evaluation plays in."""
    spec: EnvSpec
    make_policy: Callable[[], Policy]
    guard: EnvGuard

    def steppers(self, share: int) -> list[Stepper]:
        """Make the environments for this many episodes in each."""
        return [make_stepper(target, min(share, MAX_ENVS), self.guard) for target in self.targets]

    def play(
        self, steppers: Sequence[Stepper], policy: Policy, num_episodes: int, seed: int
    ) -> Iterator[Episodes]:
        """Play whole episodes in one after another. Each step yields those so far; the last yield has all of them."""
        played: Episodes = []
        for stepper in steppers:
            act = policy.greedy_action
            for episodes in play_episodes(stepper, self.spec, act, num_episodes, seed):
                yield [*played, episodes]
            played.append(episodes)


class EpisodePool:
    """Plays whole episodes without exploration noise, on several processes."""

    def __init__(self, player: Player, num_episodes: int, num_processes: int = 1) -> None:
        """Fork the workers, and make the environments for the share of this process."""
        num_processes = min(num_processes, num_episodes)
        each, more = divmod(num_episodes, num_processes)
        shares = [each + (i < more) for i in range(num_processes)]
        self._share, *rest = shares
        self._player = player
        self._policy = player.make_policy()
        self._workers = [_Worker(player, share) for share in rest]
        self._first_episodes = list(accumulate(rest, initial=self._share))[:-1]
        self._steppers = player.steppers(self._share)
        self._calls: Sequence[EnvCall] = ()

    def take_calls(self, calls: Sequence[EnvCall]) -> None:
        """Make these calls in all environments, before the next episodes."""
        self._calls = calls
        for stepper in self._steppers:
            stepper.take_calls(calls)

    def play(
        self, vector: Floats, seed: int, meanwhile: Callable[[], bool]
    ) -> Generator[None, None, Episodes]:
        """Play all episodes with the policy in `vector`, yielding after each step.

        `meanwhile` is called all the time. While only workers play, it yields only when they move or
        `meanwhile` returns True: an evaluator whose worker hangs must not look alive.
        """
        for worker, first in zip(self._workers, self._first_episodes, strict=True):
            if not worker.ready:  # it is making its environments and would not read a long message
                yield from worker.receive(meanwhile)
            worker.send((vector, seed + first, self._calls))
        self._policy.vector[:] = vector
        episodes: Episodes = []
        for episodes in self._player.play(self._steppers, self._policy, self._share, seed):  # noqa: B007
            meanwhile()
            yield
        for worker in self._workers:
            answer = (yield from worker.receive(meanwhile)) or []
            for mine, theirs in zip(episodes, answer, strict=True):
                mine.extend(theirs)
        return episodes

    def close(self) -> None:
        """End the workers and close the environments."""
        for worker in self._workers:
            worker.send(None)
        for worker in self._workers:
            worker.close()
        for stepper in self._steppers:
            stepper.close()


class _Worker:
    """A forked process that plays a share of the episodes, seen from the evaluator."""

    def __init__(self, player: Player, share: int) -> None:
        context = get_context("fork")
        self._connection, other = context.Pipe()
        self._guard = player.guard
        memory = mmap.mmap(-1, 8 * len(WORDS))  # shared with the worker, which alone writes to it
        self._record = np.frombuffer(memory, [(word, "<i8") for word in WORDS]).reshape(())
        self._seen = self._record.copy()
        arguments = (os.getpid(), other, player, self._record, share)
        # Not a daemon: daemons may not have children, and an environment may need some.
        self.process = context.Process(target=_work, args=arguments)
        self.process.start()
        other.close()
        self.ready = False
        """Whether it has made its environments; its first message says so."""

    def send(self, request: Request | None) -> None:
        """Ask for episodes; None asks it to end."""
        with suppress(ConnectionError):  # if it is gone, its last message is still to be received
            self._connection.send(request)

    def receive(self, meanwhile: Callable[[], bool]) -> Generator[None, None, Episodes | None]:
        """Wait for a message: its episodes, or None for the first one, which says that it is ready."""
        while not self._connection.poll(POLL_S):
            if meanwhile() | self._has_moved():
                yield
        self._has_moved()
        self._guard.doing[()] = Doing.OTHER
        yield
        try:
            answer: Answer = self._connection.recv()
        except (EOFError, ConnectionError):
            raise WorkerKilled("a process that plays evaluation episodes was killed") from None
        if isinstance(answer, Failure):
            if answer.given_up is not None:
                raise EnvBroken(answer.given_up, answer.text)
            raise WorkerFailed(answer.text)
        self.ready = True
        return answer

    def _has_moved(self) -> bool:
        """Whether it has done anything since the last call. Its faults count as ours, and so does what it does."""
        seen, self._seen = self._seen, self._record.copy()
        for word in FAULT_WORDS:
            self._guard.words[word][()] += self._seen[word] - seen[word]
        self._guard.doing[()] = self._seen["doing"]
        return any(self._seen[word] != seen[word] for word in ("beats", "env_calls"))

    def close(self) -> None:
        """Wait until it ends, as `send(None)` asked it to; kill it if it does not."""
        self.process.join(CLOSE_TIMEOUT_S)
        self.process.kill()
        self.process.join()
        self.process.close()
        self._connection.close()


def _work(
    parent: int, connection: Connection, player: Player, record: NDArray[Any], share: int
) -> None:
    """The body of a worker: play its share of the episodes for each request."""
    die_with_parent(parent)
    setproctitle.setproctitle(f"{setproctitle.getproctitle()} worker")
    player = replace(player, guard=player.guard.with_record(record))
    try:
        policy = player.make_policy()
        steppers = player.steppers(share)
        connection.send(None)  # ready
        while (request := connection.recv()) is not None:
            policy.vector[:], seed, calls = request
            for stepper in steppers:
                stepper.take_calls(calls)
            episodes = player.play(steppers, policy, share, seed)
            if not _send_episodes(episodes, connection, record):
                break
        for stepper in steppers:
            stepper.close()
    except EnvBroken as error:
        with suppress(ConnectionError):
            connection.send(Failure(error.newest[-TRACEBACK_CHARS:], error.why))
    except BaseException:  # an environment may even call sys.exit
        with suppress(ConnectionError):
            connection.send(Failure(traceback.format_exc()[-TRACEBACK_CHARS:]))


def _send_episodes(
    player: Iterator[Episodes], connection: Connection, record: NDArray[Any]
) -> bool:
    """Play and send the episodes; False if a message arrives, which can only ask for the end."""
    checked_s = time.monotonic()
    episodes: Episodes = []
    for episodes in player:  # noqa: B007
        record["beats"] += 1
        now_s = time.monotonic()
        if now_s - checked_s > CHECK_MESSAGES_S:
            checked_s = now_s
            if connection.poll():
                return False
    connection.send(episodes)
    return True
