"""The wires' protocols in every interleaving, and broken variants of them that must be caught.

A row and a weights vector are two words with the same value, so a mix of two of them is visible.
What is written twice, by a writer and by its successor, has two different values.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pytest

from interleave import Crash, Memory, Rows, Words, explore
from spreeze.wires.acting import NUMBER, Question, Slot
from spreeze.wires.experience import COMMITTED, RESERVED, LaneReader, LaneWriter
from spreeze.wires.weights import CHECKSUM, ENV_STEPS, SEAL, SLOTS, UPDATES, Stamp, Weights

ORDERS = ["sc", "tso"]
GARBAGE = (-1, -2)


# --- the explorer itself, on litmus tests whose outcomes are known


def litmus(order: str, *actors: Callable[[Words], Any]) -> set[tuple[Any, ...]]:
    """All outcomes of actors that share two words."""
    memory, outcomes = Memory(), set[tuple[Any, ...]]()
    words = memory.words(2)
    named = {str(i): partial(actor, words) for i, actor in enumerate(actors)}
    explore(memory, named, lambda outcome: outcomes.add(tuple(outcome.values())), order)
    return outcomes


def store_then_load(mine: int) -> Callable[[Words], Any]:
    """An actor that sets its own word and returns the other one."""

    def actor(words: Words) -> Any:
        words[mine] = 1
        return words[1 - mine]

    return actor


def send(words: Words) -> None:
    """Data, then flag."""
    words[0] = 1
    words[1] = 1


def receive(words: Words) -> tuple[int, int]:
    """Flag, then data."""
    flag = words[1]
    return flag, words[0]


def test_store_buffering_happens_with_queues_only() -> None:
    """Both actors can miss the other's store under TSO, but not under SC."""
    both = store_then_load(0), store_then_load(1)
    assert litmus("sc", *both) == {(0, 1), (1, 0), (1, 1)}
    assert litmus("tso", *both) == {(0, 0), (0, 1), (1, 0), (1, 1)}


def test_messages_pass_in_order_unless_stores_overtake() -> None:
    """Only under PSO can the flag arrive without the data."""
    in_order = {(None, (0, 0)), (None, (0, 1)), (None, (1, 1))}
    assert litmus("sc", send, receive) == litmus("tso", send, receive) == in_order
    assert litmus("pso", send, receive) == in_order | {(None, (1, 0))}


def test_every_schedule_and_every_crash_is_counted() -> None:
    """Two actors of 3 and 2 steps interleave in 10 ways; one of 3 steps crashes at 3 points."""

    def steps(num_steps: int) -> Callable[[], None]:
        def actor() -> None:
            try:
                for _ in range(num_steps):
                    words[0]
            except Crash:
                pass

        return actor

    memory = Memory()
    words = memory.words(1)
    schedules, _ = explore(memory, {"a": steps(3), "b": steps(2)}, lambda _: None)
    assert schedules == 10
    schedules, _ = explore(memory, {"a": steps(3)}, lambda _: None, crashing="a")
    assert schedules == 1 + 3


# --- the experience wire


class LaneCase(NamedTuple):
    """A race on one lane. A life is the rows that a writer commits, call by call.

    The first life ends before the race begins; the second may crash, and then the third takes over.
    """

    capacity: int
    block: int
    lives: tuple[tuple[int, ...], ...]
    drains: tuple[int, ...]
    """The sizes of the reader's buffers, call by call."""


class Seen(NamedTuple):
    """The results of all schedules."""

    drained: set[tuple[int, int]]
    """Rows that the reader got and rows that it lost."""
    left: set[tuple[int, int]]
    """Reserved rows, and rows that are lost to a reader that starts when all is over."""


def explore_lane(
    case: LaneCase,
    order: str,
    crashing: bool,
    writer_class: type[LaneWriter] = LaneWriter,
    reader_class: type[LaneReader] = LaneReader,
) -> Seen:
    """Run all schedules of a writer and a reader; fails on any wrong row."""
    memory = Memory()
    words: Any = memory.words(2)
    rows: Any = Rows([memory.words(2) for _ in range(case.capacity + case.block)])
    seen = Seen(set(), set())

    def write(life: int, written: list[Any]) -> None:
        """One life of a writer; `written[number]` is the content of that row."""
        writer = writer_class(words, rows, case.block)
        del written[writer._committed :]  # rows that its predecessor did not commit
        for num_rows in case.lives[life]:
            new = [(100 * (life + 1) + len(written) + i,) * 2 for i in range(num_rows)]
            slots = writer.reserve()
            slots[:] = [*new, *[GARBAGE] * (case.block - num_rows)]
            written += new
            writer.commit(num_rows)

    def writer() -> list[Any]:
        written = list(before)
        try:
            write(1, written)
        except Crash:
            write(2, written)
        return written

    def read(buffers: Iterable[int]) -> tuple[list[Any], int]:
        """The rows that a reader gets, each with the number it must have, and how many it lost."""
        reader = reader_class(words, rows, case.block)
        numbered: list[Any] = []
        for size in buffers:
            new: Any = reader.drain([None] * size)  # type: ignore[arg-type]
            end = len(numbered) + len(new) + reader.num_lost
            numbered += zip(range(end - len(new), end), new, strict=True)
        return numbered, reader.num_lost

    def check(outcome: dict[str, Any]) -> None:
        written, late = outcome["writer"], read([case.capacity])
        for numbered, _ in (outcome["reader"], late):
            for number, row in numbered:
                assert [row] == written[number : number + 1], f"wrong row {number}: {row}"
        seen.drained.add((len(outcome["reader"][0]), outcome["reader"][1]))
        seen.left.add((words[RESERVED], late[1]))

    before: list[Any] = []
    write(0, before)
    actors = {"writer": writer, "reader": lambda: read(case.drains)}
    schedules, states = explore(memory, actors, check, order, "writer" if crashing else "")
    print(f"{schedules:.3g} schedules, {states} states")
    return seen


def assert_proved(case: LaneCase, order: str, crashing: bool) -> None:
    """Every row is right or counted as lost, and only overwritten rows are lost."""
    seen = explore_lane(case, order, crashing)
    assert any(got for got, _ in seen.drained)
    assert any(lost for _, lost in seen.drained)
    assert all(lost == max(reserved - case.capacity, 0) for reserved, lost in seen.left)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize(
    "case",
    [
        pytest.param(LaneCase(2, 1, ((), (1, 1, 1, 1)), (2, 2, 2)), id="row by row"),
        pytest.param(LaneCase(2, 2, ((1,), (2, 1, 2)), (1, 2)), id="block as large as the ring"),
        pytest.param(LaneCase(3, 2, ((2,), (2, 1, 2)), (3, 3)), id="blocks that spill"),
        pytest.param(LaneCase(3, 2, ((2, 2), (1, 2, 2)), (3,)), id="reader far behind"),
    ],
)
@pytest.mark.fault("F36")
def test_lane(case: LaneCase, order: str) -> None:
    """One writer and one reader."""
    assert_proved(case, order, crashing=False)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize(
    "case",
    [
        pytest.param(LaneCase(2, 1, ((1, 1), (1, 1), ()), (2, 2)), id="no successor"),
        pytest.param(LaneCase(2, 1, ((1, 1), (1, 1), (1, 1)), (2, 2)), id="row by row"),
        pytest.param(LaneCase(3, 2, ((2,), (2,), (1, 2)), (3,)), id="blocks that spill"),
        pytest.param(LaneCase(3, 2, ((2, 1), (1,), (1, 2)), (3, 1)), id="blocks cut short"),
    ],
)
@pytest.mark.fault("F14")
@pytest.mark.fault("F35")
def test_lane_whose_writer_crashes_anywhere(case: LaneCase, order: str) -> None:
    """The same, with a writer that is killed at any point and replaced."""
    assert_proved(case, order, crashing=True)


class Shifted:
    """The words of a lane with a different `reserved`, to break a reader."""

    def __init__(self, words: Any, change: Callable[[int], int]) -> None:
        self.words, self.change = words, change

    def __getitem__(self, index: int) -> int:
        value: int = self.words[index]
        return self.change(value) if index == RESERVED else value


class CredulousReader(LaneReader):
    """Ignores `reserved`."""

    def __init__(self, words: Any, rows: Any, block: int) -> None:
        super().__init__(Shifted(words, lambda _: 0), rows, block)  # type: ignore[arg-type]


class GenerousReader(LaneReader):
    """Accepts one row too many."""

    def __init__(self, words: Any, rows: Any, block: int) -> None:
        super().__init__(Shifted(words, lambda n: n - 1), rows, block)  # type: ignore[arg-type]


class HastyReader(LaneReader):
    """Reads `reserved` before it copies, not after."""

    def drain(self, into: Any) -> Any:
        words = self._words
        self._words = [words[RESERVED], words[COMMITTED]]  # type: ignore[assignment]
        try:
            return super().drain(into)
        finally:
            self._words = words


class HastyWriter(LaneWriter):
    """Commits a block before it is filled."""

    def reserve(self) -> Any:
        slots = super().reserve()
        super().commit(len(slots))
        return slots

    def commit(self, num_rows: int) -> None:
        pass


class SilentWriter(LaneWriter):
    """Reserves only after it has filled the slots."""

    def reserve(self) -> Any:
        start = self._committed % self._capacity
        return self._rows[start : start + self._block]

    def commit(self, num_rows: int) -> None:
        super().reserve()
        super().commit(num_rows)


class ForgetfulWriter(LaneWriter):
    """Takes over and sets `reserved` back to `committed`."""

    def __init__(self, words: Any, rows: Any, block: int) -> None:
        super().__init__(words, rows, block)
        words[RESERVED] = self._committed


class SpillingWriter(LaneWriter):
    """Leaves rows in the spare slots after the end of the ring."""

    def commit(self, num_rows: int) -> None:
        self._committed += num_rows
        self._words[COMMITTED] = self._committed


class LateSpillWriter(LaneWriter):
    """Copies spilled rows to the front only after it has committed them."""

    def commit(self, num_rows: int) -> None:
        self._words[COMMITTED] = self._committed + num_rows
        super().commit(num_rows)


@pytest.mark.parametrize("broken", [CredulousReader, GenerousReader, HastyReader])
def test_broken_reader_is_caught(broken: type[LaneReader]) -> None:
    """Each mutation of the reader accepts a wrong row in some schedule."""
    with pytest.raises(AssertionError, match="wrong row"):
        explore_lane(LaneCase(2, 1, ((1,), (1, 1)), (2,)), "sc", False, reader_class=broken)


@pytest.mark.parametrize(
    "broken", [HastyWriter, SilentWriter, ForgetfulWriter, SpillingWriter, LateSpillWriter]
)
def test_broken_writer_is_caught(broken: type[LaneWriter]) -> None:
    """Each mutation of the writer leads to a wrong row in some schedule."""
    with pytest.raises(AssertionError, match="wrong row"):
        explore_lane(LaneCase(3, 2, ((2,), (2, 2), (2,)), (3,)), "sc", True, writer_class=broken)


@pytest.mark.fault("F32")
def test_lane_needs_stores_in_order() -> None:
    """Where stores overtake each other, as on ARM, the protocol does not hold."""
    with pytest.raises(AssertionError, match="wrong row"):
        explore_lane(LaneCase(2, 1, ((), (1,)), (1,)), "pso", False)


# --- the weights wire


def explore_weights(
    order: str,
    lives: tuple[int, ...],
    fetches: int,
    weights_class: type[Weights] = Weights,
    same_vector: bool = False,
) -> set[tuple[int | None, ...]]:
    """Run all schedules of a publisher and a reader; fails on weights that were never published.

    A life is the number of versions that a publisher makes. The first life ends before the race begins;
    the second may crash if there is a third to take over. Returns the versions that the reader
    fetched, for each schedule.
    """
    memory = Memory()
    weights = weights_class.__new__(weights_class)
    wires: dict[str, Any] = {
        "_newest": memory.words(1),
        "_slots": [memory.words(4) for _ in range(SLOTS)],
        "_data": Rows([memory.words(2) for _ in range(SLOTS)]),
        "size": 2,
    }
    vars(weights).update(wires)
    seen: set[tuple[int | None, ...]] = set()

    def publish(life: int, published: list[Any]) -> None:
        """One life of a publisher; `published[version]` is the content of that version."""
        del published[weights.version + 1 :]
        for _ in range(lives[life]):
            version = len(published)
            mark = 10 * version + life
            vector = np.full(2, 7 if same_vector else mark, np.float32)
            published.append((Stamp(version, mark, -mark), vector.tolist()))
            weights.publish(vector, mark, -mark)

    def publisher() -> list[Any]:
        published = list(before)
        try:
            publish(1, published)
        except Crash:
            publish(2, published)
        return published

    def reader() -> list[Any]:
        """The result of each fetch: a stamp and its vector, or None."""
        fetched: list[Any] = []
        have = 0
        for _ in range(fetches):
            vector = np.zeros(2, np.float32)
            stamp = weights.fetch(vector, have)
            have = stamp.version if stamp else have
            fetched.append((stamp, vector.tolist()) if stamp else None)
        return fetched

    def check(outcome: dict[str, Any]) -> None:
        published, fetched = outcome["publisher"], outcome["reader"]
        for stamp, vector in filter(None, fetched):
            assert (stamp, vector) == published[stamp.version], "torn weights"
        seen.add(tuple(pair[0].version if pair else None for pair in fetched))
        vector = np.zeros(2, np.float32)
        last = weights.fetch(vector, 0)
        assert (last, vector.tolist()) == published[weights.version], "newest weights unreadable"

    before: list[Any] = [None]
    publish(0, before)
    crashing = "publisher" if len(lives) > 2 else ""
    actors = {"publisher": publisher, "reader": reader}
    schedules, states = explore(memory, actors, check, order, crashing)
    print(f"{schedules:.3g} schedules, {states} states")
    return seen


@pytest.mark.parametrize("same_vector", [False, True])
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.fault("F27")
@pytest.mark.fault("F29")
def test_weights(order: str, same_vector: bool) -> None:
    """A publisher laps its reader: weights are whole and have their own stamp, or are refused.

    Versions only increase, and stamps are not mixed up even if all vectors are equal.
    """
    seen = explore_weights(order, (1, 4), 2, same_vector=same_vector)
    assert {(1, 5), (None, 4)} <= seen
    for versions in seen:
        got = [version for version in versions if version is not None]
        assert got == sorted(set(got))


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("successor", [0, 1, 2])
@pytest.mark.fault("F14")
@pytest.mark.fault("F28")
def test_weights_whose_publisher_crashes_anywhere(order: str, successor: int) -> None:
    """The last version stays readable, and a successor continues from it."""
    seen = explore_weights(order, (1, 2, successor), 2)
    assert {(1, None), (1, 2)} <= seen


def loose(check_seal: bool, check_sum: bool) -> type[Weights]:
    """Weights whose `fetch` omits a check."""

    class LooseWeights(Weights):
        def fetch(self, into: Any, have: int) -> Stamp | None:
            version = self.version
            slot = self._slots[version % SLOTS]
            into[:] = self._data[version % SLOTS]
            stamp = Stamp(version, int(slot[UPDATES]), int(slot[ENV_STEPS]))
            if check_sum and zlib.crc32(into.data) != slot[CHECKSUM]:
                return None
            return None if check_seal and slot[SEAL] != version else stamp

    return LooseWeights


class UnsealedWeights(Weights):
    """Does not clear the seal of a slot before it writes there."""

    def publish(self, vector: Any, updates: int, env_steps: int) -> int:
        version = self.version + 1
        self._fill(version, vector, updates, env_steps)
        self._newest[0] = version
        return version

    def _fill(self, version: int, vector: Any, updates: int, env_steps: int) -> None:
        slot = self._slots[version % SLOTS]
        self._data[version % SLOTS] = vector
        slot[CHECKSUM] = zlib.crc32(vector.data)
        slot[UPDATES], slot[ENV_STEPS], slot[SEAL] = updates, env_steps, version


class HastyWeights(UnsealedWeights):
    """Announces a version before it has written it."""

    def publish(self, vector: Any, updates: int, env_steps: int) -> int:
        version = self.version + 1
        self._newest[0] = version
        self._fill(version, vector, updates, env_steps)
        return version


@pytest.mark.parametrize("check_sum", [False, True])
def test_fetch_without_the_seal_is_caught(check_sum: bool) -> None:
    """The checksum alone is not enough, nor is no check at all."""
    with pytest.raises(AssertionError, match="torn weights"):
        explore_weights("sc", (1, 3), 1, loose(check_seal=False, check_sum=check_sum))


def test_publisher_that_keeps_the_seal_is_caught() -> None:
    """The checksum cannot tell two versions of the same vector apart, so their stamps get mixed."""
    with pytest.raises(AssertionError, match="torn weights"):
        explore_weights("sc", (1, 3), 1, UnsealedWeights, same_vector=True)


def test_early_announcement_is_caught() -> None:
    """A publisher that is killed after the announcement leaves no readable version."""
    with pytest.raises(AssertionError, match="newest weights unreadable"):
        explore_weights("sc", (1, 1, 0), 1, HastyWeights)


def test_publisher_with_a_single_slot_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """A publisher that overwrites the last version and is killed leaves none."""
    monkeypatch.setattr("spreeze.wires.weights.SLOTS", 1)
    with pytest.raises(AssertionError, match="newest weights unreadable"):
        explore_weights("sc", (1, 1, 0), 1)


@pytest.mark.fault("F32")
def test_weights_need_stores_in_order() -> None:
    """Where stores overtake each other, as on ARM, a seal proves nothing."""
    with pytest.raises(AssertionError, match="torn weights"):
        explore_weights("pso", (1, 1), 1)


# --- the acting wire


def explore_acting(
    order: str,
    crashing: str = "",
    question_class: type[Question] = Question,
    slot_class: type[Slot] = Slot,
) -> set[tuple[int, ...]]:
    """Run all schedules of a sampler that asks and a process that answers; fails on any wrong answer.

    The answer to an observation is its negative. Returns which questions were answered in time, for each schedule.
    """
    memory = Memory()
    words: list[Any] = [memory.words(2), memory.words(2)]
    obs: Any = Rows([memory.words(2)])
    outputs: Any = Rows([memory.words(2)])
    seen: set[tuple[int, ...]] = set()

    def ask(life: int, got: list[Any]) -> None:
        question = question_class(*words, obs, outputs)
        for i in range(2):
            mark = 10 * life + i + 1
            question.ask([(mark, mark)])  # type: ignore[arg-type]
            if not (question.is_answered or question.is_answered):
                return  # it has no time to wait longer
            got.append((mark, *question.answer))

    def asker() -> list[Any]:
        got: list[Any] = []
        try:
            ask(1, got)
        except Crash:
            ask(2, got)
        return got

    def answer(rounds: int) -> None:
        slot = slot_class(*words, obs, outputs)
        for _ in range(rounds):
            if (number := slot.open_question()) is not None:
                ((first, second),) = slot.obs
                slot.answer(number, [(-first, -second)], 7)  # type: ignore[arg-type]

    def answerer() -> None:
        try:
            answer(2)
        except Crash:
            answer(2)

    def check(outcome: dict[str, Any]) -> None:
        for mark, *answers in outcome["asker"]:
            assert answers == [(-mark, -mark)], f"wrong answer to {mark}: {answers}"
        seen.add(tuple(mark for mark, *_ in outcome["asker"]))

    explore(memory, {"asker": asker, "answerer": answerer}, check, order, crashing)
    return seen


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("crashing", ["", "asker", "answerer"])
@pytest.mark.fault("F14")
def test_every_answer_is_to_the_question_that_was_asked(order: str, crashing: str) -> None:
    """Whoever is killed at whatever point, and replaced."""
    seen = explore_acting(order, crashing)
    assert (11, 12) in seen, "both questions may be answered"
    if crashing == "asker":
        assert (21, 22) in seen, "those of a successor, too"


class HastyQuestion(Question):
    """Asks before the observations are there."""

    def ask(self, obs: Any) -> None:
        self._number += 1
        self._asked[NUMBER] = self._number
        self.obs[:] = obs


class HastySlot(Slot):
    """Says that it has answered before the answer is there."""

    def answer(self, number: int, outputs: Any, version: int) -> None:
        self._answered[NUMBER] = number
        self._outputs[:] = outputs


class LateSlot(Slot):
    """Answers under the number that is the newest when the answer is ready."""

    def answer(self, number: int, outputs: Any, version: int) -> None:
        super().answer(int(self._asked[NUMBER]), outputs, version)


@pytest.mark.parametrize(
    ("broken", "crashing"),
    [
        ({"question_class": HastyQuestion}, ""),
        ({"slot_class": HastySlot}, ""),
        ({"slot_class": LateSlot}, "asker"),
    ],
)
def test_a_broken_acting_wire_is_caught(broken: dict[str, Any], crashing: str) -> None:
    """Each mutation gives a wrong answer in some schedule."""
    with pytest.raises(AssertionError, match="wrong answer"):
        explore_acting("sc", crashing, **broken)


def test_the_acting_wire_needs_stores_in_order() -> None:
    """Where stores overtake each other, as on ARM, the protocol does not hold."""
    with pytest.raises(AssertionError, match="wrong answer"):
        explore_acting("pso")
