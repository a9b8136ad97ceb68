"""A crew: several processes that play the episodes of one evaluation side by side.

Ten episodes of a slow environment take seconds, which are seconds until a policy is known to be good.
This process plays a share of them, helpers that it has forked play the rest. Which episodes are
played does not depend on how many processes there are.
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
from spreeze.lifeline import die_with_parent
from spreeze.policy import Policy, PolicyForm
from spreeze.spec import EnvSpec, Floats

MAX_ENVS = 10
POLL_S, SIGN_OF_LIFE_S = 0.005, 1.0

Results = list[tuple[float, int]]
"""Return and length of each episode."""


class HelperFailed(RuntimeError):
    """An environment raised in a helper; the message is its traceback."""


class HelperKilled(RuntimeError):
    """A helper is gone without a word."""


class Crew:
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
        each, more = divmod(num_episodes, num_processes)
        shares = [each + (i < more) for i in range(num_processes) if each + (i < more) > 0]
        self._firsts = list(accumulate(shares, initial=0))[:-1]
        self._policy = Policy(spec, form)
        self._share = shares[0]
        context = get_context("fork")
        self._lines: list[Connection] = []
        self._helpers = []
        for share in shares[1:]:
            line, other = context.Pipe()
            arguments = (os.getpid(), other, target, spec, form, share)
            helper = context.Process(target=_help, args=arguments, daemon=True)
            helper.start()
            other.close()
            self._lines.append(line)
            self._helpers.append(helper)
        self._stepper = make_stepper(target, min(self._share, MAX_ENVS))

    def play(
        self, vector: Floats, seed: int, meanwhile: Callable[[], bool]
    ) -> Generator[None, None, Results]:
        """Play all episodes with the policy of this vector, yielding after each step.

        While only helpers are playing it yields when one is heard, as one that is stuck should not look
        alive, or when `meanwhile`, which is called all the time, says so.
        """
        policy, first = self._policy, self._firsts
        for line, start in zip(self._lines, first[1:], strict=True):
            with suppress(ConnectionError):  # of one that is gone, its last words are read below
                line.send((vector, seed + start))
        policy.vector[:] = vector
        player = play_episodes(
            self._stepper, policy.spec, _acting(policy), self._share, seed + first[0]
        )
        while True:
            try:
                next(player)
            except StopIteration as end:
                results: Results = end.value
                break
            meanwhile()
            yield
        for line in self._lines:
            answer: Results | None = None
            while answer is None:
                heard = line.poll(POLL_S)
                if meanwhile() or heard:
                    yield
                answer = self._answer(line) if heard else None
            results += answer
        return results

    def close(self) -> None:
        """End the helpers and close the environments."""
        for line, helper in zip(self._lines, self._helpers, strict=True):
            helper.kill()
            helper.join()
            helper.close()
            line.close()
        self._stepper.close()

    def _answer(self, line: Connection) -> Results | None:
        """What a helper says: its results, or just that it is still playing."""
        try:
            answer: Results | str | None = line.recv()
        except (EOFError, ConnectionError):
            raise HelperKilled("a process that plays evaluation episodes was killed") from None
        if isinstance(answer, str):
            raise HelperFailed(answer)
        return answer


def _acting(policy: Policy) -> Callable[[Floats], Floats]:
    return lambda obs: policy.scale(policy.act(obs, explore=False))


def _help(
    parent: int, line: Connection, target: EnvTarget, spec: EnvSpec, form: PolicyForm, share: int
) -> None:
    """What a helper does: play its share whenever it gets a policy."""
    die_with_parent(parent)
    setproctitle.setproctitle(f"{setproctitle.getproctitle()} helper")
    try:
        policy = Policy(spec, form)
        stepper = make_stepper(target, min(share, MAX_ENVS))
        while True:
            policy.vector[:], seed = line.recv()
            player = play_episodes(stepper, spec, _acting(policy), share, seed)
            said_s = time.monotonic()
            try:
                while True:
                    next(player)
                    if time.monotonic() - said_s > SIGN_OF_LIFE_S:
                        line.send(None)
                        said_s = time.monotonic()
            except StopIteration as end:
                line.send(end.value)
    except BaseException:  # an environment may even call sys.exit
        line.send(traceback.format_exc())
