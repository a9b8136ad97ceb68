"""The episodes of an evaluation, played by several processes at once.

Ten episodes of a slow environment take seconds, which delays the news that a policy is good. So this
process plays a share of the episodes, and forked workers play the rest. The episodes are the same for
any number of processes; only rounding differs, with the number of environments that act at once.
"""

from __future__ import annotations

import os
import time
import traceback
from collections.abc import Callable, Generator, Iterator
from contextlib import suppress
from itertools import accumulate
from multiprocessing import get_context
from multiprocessing.connection import Connection

import setproctitle

from spreeze.envs.stepping import Episode, make_stepper, play_episodes
from spreeze.envs.targets import EnvTarget
from spreeze.machine.lifeline import die_with_parent
from spreeze.policy import Policy, PolicyForm
from spreeze.spec import EnvSpec, Floats

MAX_ENVS = 10
POLL_S = 0.005
CHECK_MESSAGES_S = 0.05
HEARTBEAT_S = 1.0
CLOSE_TIMEOUT_S = 2.0
"""How long workers may take to close their environments."""
TRACEBACK_CHARS = 60_000
"""Only the end of a traceback is sent: it must fit into the pipe, because the evaluator may not be reading yet."""

Request = tuple[Floats, int]
"""The policy to play, and the seed of the first episode."""
Answer = list[Episode] | str | None
"""The episodes of a request, a traceback, or None: a heartbeat."""


class WorkerFailed(RuntimeError):
    """An environment raised in a worker; the message is its traceback."""


class WorkerKilled(RuntimeError):
    """A worker ended without a message."""


class EpisodePool:
    """Plays whole episodes without exploration noise, on several processes."""

    def __init__(
        self,
        target: EnvTarget,
        spec: EnvSpec,
        form: PolicyForm,
        num_episodes: int,
        num_processes: int = 1,
    ) -> None:
        """Fork the workers, and make the environments for the share of this process."""
        num_processes = min(num_processes, num_episodes)
        each, more = divmod(num_episodes, num_processes)
        shares = [each + (i < more) for i in range(num_processes)]
        self._share, *rest = shares
        self._policy = Policy(spec, form)
        self._workers = [_Worker(target, spec, form, share) for share in rest]
        self._first_episodes = list(accumulate(rest, initial=self._share))[:-1]
        self._stepper = make_stepper(target, min(self._share, MAX_ENVS))

    def play(
        self, vector: Floats, seed: int, meanwhile: Callable[[], bool]
    ) -> Generator[None, None, list[Episode]]:
        """Play all episodes with the policy in `vector`, yielding after each step.

        `meanwhile` is called all the time. While only workers play, it yields only when a message has
        arrived or `meanwhile` returns True: an evaluator whose worker hangs must not look alive.
        """
        for worker, first in zip(self._workers, self._first_episodes, strict=True):
            if not worker.ready:  # it is making its environments and would not read a long message
                yield from worker.receive(meanwhile)
            worker.send((vector, seed + first))
        self._policy.vector[:] = vector
        act, spec = self._policy.greedy_action, self._policy.spec
        episodes: list[Episode] = []
        for episodes in play_episodes(self._stepper, spec, act, self._share, seed):  # noqa: B007
            meanwhile()
            yield
        for worker in self._workers:
            answer = None
            while answer is None:
                answer = yield from worker.receive(meanwhile)
            episodes += answer
        return episodes

    def close(self) -> None:
        """End the workers and close the environments."""
        for worker in self._workers:
            worker.send(None)
        for worker in self._workers:
            worker.close()
        self._stepper.close()


class _Worker:
    """A forked process that plays a share of the episodes, seen from the evaluator."""

    def __init__(self, target: EnvTarget, spec: EnvSpec, form: PolicyForm, share: int) -> None:
        context = get_context("fork")
        self._connection, other = context.Pipe()
        arguments = (os.getpid(), other, target, spec, form, share)
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

    def receive(self, meanwhile: Callable[[], bool]) -> Generator[None, None, list[Episode] | None]:
        """Wait for a message: its episodes, or None for a heartbeat."""
        while not self._connection.poll(POLL_S):
            if meanwhile():
                yield
        yield
        try:
            answer: Answer = self._connection.recv()
        except (EOFError, ConnectionError):
            raise WorkerKilled("a process that plays evaluation episodes was killed") from None
        if isinstance(answer, str):
            raise WorkerFailed(answer)
        self.ready = True
        return answer

    def close(self) -> None:
        """Wait until it ends, as `send(None)` asked it to; kill it if it does not."""
        self.process.join(CLOSE_TIMEOUT_S)
        self.process.kill()
        self.process.join()
        self.process.close()
        self._connection.close()


def _work(
    parent: int,
    connection: Connection,
    target: EnvTarget,
    spec: EnvSpec,
    form: PolicyForm,
    share: int,
) -> None:
    """The body of a worker: play its share of the episodes for each request."""
    die_with_parent(parent)
    setproctitle.setproctitle(f"{setproctitle.getproctitle()} worker")
    try:
        policy = Policy(spec, form)
        stepper = make_stepper(target, min(share, MAX_ENVS))
        connection.send(None)  # ready
        while (request := connection.recv()) is not None:
            policy.vector[:], seed = request
            player = play_episodes(stepper, spec, policy.greedy_action, share, seed)
            if not _send_episodes(player, connection):
                break
        stepper.close()
    except BaseException:  # an environment may even call sys.exit
        with suppress(ConnectionError):
            connection.send(traceback.format_exc()[-TRACEBACK_CHARS:])


def _send_episodes(player: Iterator[list[Episode]], connection: Connection) -> bool:
    """Play and send the episodes, with heartbeats; False if a message arrives, which can only ask for the end."""
    heartbeat_s = checked_s = time.monotonic()
    episodes: list[Episode] = []
    for episodes in player:  # noqa: B007
        now_s = time.monotonic()
        if now_s - checked_s > CHECK_MESSAGES_S:
            checked_s = now_s
            if connection.poll():
                return False
        if now_s - heartbeat_s > HEARTBEAT_S:
            heartbeat_s = now_s
            connection.send(None)
    connection.send(episodes)
    return True
