"""A crew: several processes that play the episodes of one evaluation side by side.

Ten episodes of a slow environment take seconds, which are seconds until a policy is known to be good.
This process plays a share of them, helpers that it has forked play the rest. Which episodes are
played does not depend on how many processes there are; rounding does, by how many act at once.
"""

from __future__ import annotations

import os
import time
import traceback
from collections.abc import Callable, Generator
from contextlib import suppress
from itertools import accumulate
from multiprocessing import get_context
from multiprocessing.connection import Connection

import setproctitle

from spreeze.envs.stepping import make_stepper, play_episodes
from spreeze.envs.targets import EnvTarget
from spreeze.machine.lifeline import die_with_parent
from spreeze.policy import Policy, PolicyForm
from spreeze.spec import EnvSpec, Floats

MAX_ENVS = 10
POLL_S, LOOK_EVERY_S, SIGN_OF_LIFE_S = 0.005, 0.05, 1.0
PATIENCE_S = 2.0
"""How long helpers may take to close their environments."""
REPORT_LENGTH = 60_000

Results = list[tuple[float, int]]
"""Return and length of each episode."""


class HelperFailed(RuntimeError):
    """An environment raised in a helper; the message is its traceback."""


class WorkerKilled(RuntimeError):
    """A helper is gone without a word."""


class EpisodePool:
    """Plays whole episodes without noise."""

    def __init__(
        self,
        target: EnvTarget,
        spec: EnvSpec,
        form: PolicyForm,
        num_episodes: int,
        num_processes: int = 1,
    ) -> None:
        """Fork the helpers, and make environments for the share of this process."""
        num_processes = min(num_processes, num_episodes)
        each, more = divmod(num_episodes, num_processes)
        shares = [each + (i < more) for i in range(num_processes)]
        self._share, *rest = shares
        self._policy = Policy(spec, form)
        self._helpers = [_Worker(target, spec, form, share) for share in rest]
        self._firsts = list(accumulate(rest, initial=self._share))[:-1]
        self._stepper = make_stepper(target, min(self._share, MAX_ENVS))

    def play(
        self, vector: Floats, seed: int, meanwhile: Callable[[], bool]
    ) -> Generator[None, None, Results]:
        """Play all episodes with the policy of this vector, yielding after each step.

        While only helpers are playing it yields when one is heard, as one that is stuck should not look
        alive, or when `meanwhile`, which is called all the time, says so.
        """
        for helper, first in zip(self._helpers, self._firsts, strict=True):
            if not helper.ready:  # it makes its environments: it would not read a long message
                yield from helper.hear(meanwhile)
            helper.tell((vector, seed + first))
        self._policy.vector[:] = vector
        player = play_episodes(
            self._stepper, self._policy.spec, _acting(self._policy), self._share, seed
        )
        while True:
            try:
                next(player)
            except StopIteration as end:
                results: Results = end.value
                break
            meanwhile()
            yield
        for helper in self._helpers:
            answer = None
            while answer is None:
                answer = yield from helper.hear(meanwhile)
            results += answer
        return results

    def close(self) -> None:
        """End the helpers and close the environments."""
        for helper in self._helpers:
            helper.tell(None)
        for helper in self._helpers:
            helper.close()
        self._stepper.close()


class _Worker:
    """Another process that plays a share of the episodes, as this one sees it."""

    def __init__(self, target: EnvTarget, spec: EnvSpec, form: PolicyForm, share: int) -> None:
        context = get_context("fork")
        self._line, other = context.Pipe()
        arguments = (os.getpid(), other, target, spec, form, share)
        # Not a daemon: those may not have children, and an environment may want some.
        self.process = context.Process(target=_help, args=arguments)
        self.process.start()
        other.close()
        self.ready = False
        """Whether it was heard of: its environments are made."""

    def tell(self, message: tuple[Floats, int] | None) -> None:
        """Which policy to play from which seed, or that this is the end."""
        with suppress(ConnectionError):  # of one that is gone, the last counters are yet to be read
            self._line.send(message)

    def hear(self, meanwhile: Callable[[], bool]) -> Generator[None, None, Results | None]:
        """Wait for a word of it: its results, or None, a sign of life."""
        while not self._line.poll(POLL_S):
            if meanwhile():
                yield
        yield
        try:
            answer: Results | str | None = self._line.recv()
        except (EOFError, ConnectionError):
            raise WorkerKilled("a process that plays evaluation episodes was killed") from None
        if isinstance(answer, str):
            raise HelperFailed(answer)
        self.ready = True
        return answer

    def close(self) -> None:
        """Let it end, as it was told to; kill it if it does not."""
        self.process.join(PATIENCE_S)
        self.process.kill()
        self.process.join()
        self.process.close()
        self._line.close()


def _acting(policy: Policy) -> Callable[[Floats], Floats]:
    return lambda obs: policy.to_env_action(policy.act(obs, explore=False))


def _help(
    parent: int, line: Connection, target: EnvTarget, spec: EnvSpec, form: PolicyForm, share: int
) -> None:
    """What a helper does: play its share whenever it gets a policy."""
    die_with_parent(parent)
    setproctitle.setproctitle(f"{setproctitle.getproctitle()} helper")
    try:
        policy = Policy(spec, form)
        stepper = make_stepper(target, min(share, MAX_ENVS))
        line.send(None)
        while (message := line.recv()) is not None:
            policy.vector[:], seed = message
            player = play_episodes(stepper, spec, _acting(policy), share, seed)
            if (results := _played(player, line)) is None:
                break
            line.send(results)
        stepper.close()
    except BaseException:  # an environment may even call sys.exit
        with suppress(ConnectionError):
            line.send(traceback.format_exc()[-REPORT_LENGTH:])


def _played(player: Generator[None, None, Results], line: Connection) -> Results | None:
    """The results, with a sign of life now and then; None if it is told to end before."""
    said_s = looked_s = time.monotonic()
    while True:
        try:
            next(player)
        except StopIteration as end:
            results: Results = end.value
            return results
        now_s = time.monotonic()
        if now_s - looked_s > LOOK_EVERY_S:
            looked_s = now_s
            if line.poll():
                return None
        if now_s - said_s > SIGN_OF_LIFE_S:
            said_s = now_s
            line.send(None)
