"""The replay: what updates read while rows arrive, wherever the rows are."""

from __future__ import annotations

from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import numpy as np
import psutil
import pytest
import torch

from spreeze.algos.sac import SACConfig, build
from spreeze.learning import replay as replay_module
from spreeze.learning.minibatch import HostSampledBatches, draw, gather
from spreeze.learning.replay import Replay, ReplayShape
from spreeze.learning.state import init_state
from spreeze.learning.updater import Updater, UpdateSetup, out_of_memory
from spreeze.policy import Policy, PolicyForm
from spreeze.roles.learner.intake import Intake
from spreeze.roles.learner.publisher import PolicyPublisher
from spreeze.roles.learner.setup import allocate
from spreeze.roles.learner.update_runner import UpdateRunner
from spreeze.rows import PLACEMENTS, Rows, as_matrix, row_layout
from spreeze.settings.defaults import config_with, default_config
from spreeze.spec import EnvSpec, Floats
from spreeze.wires.arena import Arena
from spreeze.wires.experience import Experience, experience_blocks

SPEC = EnvSpec(
    id="x", obs_shape=(4,), action_shape=(2,), action_low=(-1.0, -1.0), action_high=(1.0, 1.0)
)
LAYOUT = row_layout(SPEC)
CPU = torch.device("cpu")
on_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


def numbered(first: int, count: int) -> Rows:
    """Rows in which every word is the row's number."""
    rows = np.zeros(count, LAYOUT.dtype)
    as_matrix(rows)[:] = np.arange(first, first + count, dtype=np.float32)[:, None]
    return rows


def read_all(replay: Replay) -> list[int]:
    """The numbers of all rows that updates can read. No row may be torn."""
    uniform = (torch.arange(replay.num_rows, device=replay.data.device) + 0.5) / replay.num_rows
    batch = gather(replay.data, draw(replay.data, replay.window, uniform), LAYOUT)
    assert (batch.obs == batch.reward[:, None]).all()
    assert (batch.next_obs == batch.reward[:, None]).all()
    return [int(number) for number in batch.reward]


@pytest.mark.parametrize("slack", [0, 1, 5, 30])
def test_updates_read_the_newest_rows_whatever_the_slack(slack: int) -> None:
    replay = Replay(LAYOUT, 20, CPU, slack=slack)
    rng, total = np.random.default_rng(slack), 0
    for _ in range(60):
        count = int(rng.integers(1, 30))
        replay.insert(numbered(total, count))
        total += count
        assert read_all(replay) == list(range(max(0, total - 20), total))


def test_rows_are_written_beside_what_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    replay = Replay(LAYOUT, 20, CPU, slack=6)
    seen: list[list[int]] = []
    real_move = Replay._move_window

    def move(self: Replay, num_rows: int) -> None:
        if self.num_rows:
            seen.append(read_all(self))  # the rows are there, the window has not moved yet
        real_move(self, num_rows)

    monkeypatch.setattr(Replay, "_move_window", move)
    for first in range(0, 200, 10):
        replay.insert(numbered(first, 10))
    for numbers in seen:
        assert all(b == a + 1 for a, b in pairwise(numbers))
    assert len(seen) == 39


def test_a_replay_without_memory_can_be_traced_and_not_filled() -> None:
    replay = ReplayShape(LAYOUT, 20, CPU)
    assert gather(
        replay.data, draw(replay.data, replay.window, torch.rand(5)), LAYOUT
    ).obs.shape == (5, 4)
    with pytest.raises(ValueError, match="without memory"):
        replay.insert(numbered(0, 3))


@pytest.mark.parametrize("batch_size", [1, 3, 256, 8191, 100_003])
def test_a_batch_sampled_on_the_host_is_read_whole_and_in_order(batch_size: int) -> None:
    replay = Replay(LAYOUT, 1000, CPU)
    replay.insert(numbered(0, 1500))
    sampled = HostSampledBatches(replay, 1, batch_size)
    sampled.fill()
    index = draw(sampled.data[0], sampled.window, sampled.uniform)
    batch = gather(sampled.data[0], index, LAYOUT)
    torch.testing.assert_close(batch.obs, sampled.data[0][:, :4], rtol=0, atol=0)
    assert batch.reward.min() >= 500
    assert batch.reward.max() < 1500


def test_updates_from_batches_sampled_on_the_host_see_all_rows_equally_often() -> None:
    algorithm = build(SACConfig(hidden=(16,)), SPEC)
    replay = Replay(LAYOUT, 100, CPU)
    replay.sampled_on_host = True
    replay.insert(numbered(0, 120))
    state = init_state(algorithm, 0, CPU)
    updater = Updater(UpdateSetup(algorithm, replay, state, 50, (1e-3, 0.01), chunk=4))
    counts = np.zeros(120)
    for _ in range(50):
        updater.run()
        sampled = updater._batches[50]
        np.add.at(counts, sampled.data[:, :, 0].long().ravel().numpy(), 1)
    assert float(updater.state["updates"]) == 200
    assert counts[:20].sum() == 0
    assert counts[20:].min() > 50
    assert counts[20:].max() < 160  # 100 are expected of each


class Lanes:
    """Some lanes and their writers."""

    def __init__(self, num: int, capacity: int = 64, block: int = 8) -> None:
        self.arena = Arena.create(experience_blocks(LAYOUT, num, capacity, block))
        experience = Experience(self.arena, block)
        self.writers = [experience.writer(lane) for lane in range(num)]
        self.readers = experience.readers(as_words=True)

    def write(self, lane: int, rows: Rows) -> None:
        for start in range(0, len(rows), 8):
            piece = rows[start : start + 8]
            self.writers[lane].reserve()[: len(piece)] = piece
            self.writers[lane].commit(len(piece))


@pytest.fixture
def lanes() -> Any:
    made = Lanes(3)
    yield made
    made.arena.close()


def test_all_lanes_are_copied_in_one_piece(lanes: Lanes, monkeypatch: pytest.MonkeyPatch) -> None:
    replay, pieces = Replay(LAYOUT, 1000, CPU, slack=100), []
    real_write = Replay._write
    monkeypatch.setattr(Replay, "_write", lambda self, x: (pieces.append(x), real_write(self, x)))
    intake = Intake(lanes.readers)
    for lane in range(3):
        lanes.write(lane, numbered(100 * lane, 10 + lane))
    intake.move_to(replay, 300)
    wanted = [*range(10), *range(100, 111), *range(200, 212)]
    assert read_all(replay) == wanted
    assert len(pieces) == 1
    assert intake.lag != 0
    intake.move_to(replay, 300)
    assert len(pieces) == 1, "nothing new, nothing copied"


def test_beside_updates_no_more_than_the_slack_comes_and_every_lane_gets_a_turn(
    lanes: Lanes,
) -> None:
    replay = Replay(LAYOUT, 1000, CPU, slack=20)
    intake = Intake(lanes.readers)
    for lane in range(3):
        lanes.write(lane, numbered(100 * lane, 30))
    counts = []
    for _ in range(5):
        intake.move_to(replay, 0)
        counts.append(replay.num_rows)
    assert counts == [20, 40, 60, 80, 90]
    numbers = read_all(replay)
    assert sorted(numbers) == [*range(30), *range(100, 130), *range(200, 230)]
    assert {number // 100 for number in numbers[:60]} == {0, 1, 2}
    without = Replay(LAYOUT, 1000, CPU)
    for lane in range(3):
        lanes.write(lane, numbered(100 * lane, 30))
    Intake(lanes.readers).move_to(without, 0)
    assert without.num_rows == 90, "on a CPU everything that is there"


@pytest.mark.fault("F31")
@pytest.mark.fault("F40")
@pytest.mark.parametrize("version", [300, 2**32 + 100])
def test_the_lag_of_a_sampler_without_new_weights_is_seen(lanes: Lanes, version: int) -> None:
    """The newest versions need more than the 32 bits that a row has for them."""
    replay, intake = Replay(LAYOUT, 1000, CPU), Intake(lanes.readers)
    rows = numbered(0, 8)
    rows["version"] = (version - 200) % 2**32
    for _ in range(200):
        lanes.write(0, rows)
        intake.move_to(replay, version)
    assert intake.lag == pytest.approx(200, rel=0.01)


def test_rows_overwritten_in_the_lane_leave_no_gap(lanes: Lanes) -> None:
    replay, intake = Replay(LAYOUT, 1000, CPU), Intake(lanes.readers)
    lanes.write(0, numbered(0, 64))
    lanes.writers[0].reserve()  # may overwrite the oldest 8 from now on
    lanes.write(1, numbered(100, 10))
    intake.move_to(replay, 0)
    assert read_all(replay) == [*range(8, 64), *range(100, 110)]
    assert intake.num_lost == 8


def context(**knobs: Any) -> Any:
    """The members of a learner's context that updates need."""
    knobs = {
        "device": "cpu",
        "learner.compile": False,
        "learner.batch_size": 1000,
        "replay.capacity": 1000,
        "replay.placement": "gpu",
    } | knobs
    words = dict.fromkeys(("batch_size", "compiled", "out_of_memory", "replay_placement"), 0)
    return SimpleNamespace(
        config=config_with(default_config(env="x"), knobs),
        spec=SPEC,
        layout=LAYOUT,
        counters=words,
        control=SimpleNamespace(supervisor={"batch_size": knobs["learner.batch_size"]}),
        seed=lambda: [0],
    )


def short_of_memory(monkeypatch: pytest.MonkeyPatch, refused: Any) -> None:
    """Let updaters for which `refused` is true fail as on a full GPU."""
    real = Updater._prepare

    def prepare(self: Updater) -> Any:
        if refused(self):
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
        return real(self)

    monkeypatch.setattr(Updater, "_prepare", prepare)


def started(ctx: Any) -> tuple[Replay, Updater, Any]:
    algorithm = build(SACConfig(hidden=(16,)), SPEC)
    replay, state = allocate(ctx, algorithm, [CPU])
    replay.insert(numbered(0, 500))
    updater = Updater(UpdateSetup(algorithm, replay, state, 1000, (1e-3, 0.01)))
    return replay, updater, UpdateRunner(ctx, updater, replay)


@pytest.mark.fault("F54")
def test_a_replay_that_does_not_fit_on_the_gpu_is_in_host_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    real, tried = replay_module.allocate, []

    def allocate_or_fail(shape: Any, device: Any, placement: Any) -> Any:
        tried.append(placement)
        if placement == "gpu":
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return real(shape, device, placement)

    monkeypatch.setattr(replay_module, "allocate", allocate_or_fail)
    ctx = context()
    replay, updater, runner = started(ctx)
    runner.run()
    assert tried == ["gpu", "pinned"]
    assert replay.placement == "pinned"
    assert PLACEMENTS[ctx.counters["replay_placement"]] == "pinned"
    assert ctx.counters["out_of_memory"] == 1
    assert ctx.counters["batch_size"] == 1000
    assert float(updater.state["updates"]) == 1


@pytest.mark.fault("F55")
def test_out_of_memory_moves_the_replay_and_then_halves_the_batch(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    short_of_memory(monkeypatch, lambda updater: updater.batch_size > 300)
    ctx = context()
    replay, updater, runner = started(ctx)
    runner.run()
    assert float(updater.state["updates"]) == 1, "the failed attempts left no trace"
    assert replay.placement == "pinned"
    assert read_all(replay) == list(range(500)), "no row is lost on the way"
    assert ctx.counters["batch_size"] == updater.batch_size == 256
    assert ctx.counters["out_of_memory"] == 3
    said = capsys.readouterr().out
    assert "page-locked host memory" in said
    assert "500 transitions" in said
    assert "256 transitions" in said
    ctx.control.supervisor["batch_size"] = 128
    runner.run()
    assert updater.batch_size == 128
    ctx.control.supervisor["batch_size"] = 4096
    runner.run()
    assert updater.batch_size == 256, "what did not fit is not tried again"


def test_when_nothing_helps_the_error_is_the_learners_own(monkeypatch: pytest.MonkeyPatch) -> None:
    short_of_memory(monkeypatch, lambda _: True)
    _, _, runner = started(context())
    with pytest.raises(torch.OutOfMemoryError, match="Tried to allocate"):
        runner.run()
    short_of_memory(monkeypatch, lambda _: False)
    monkeypatch.setattr(Updater, "run", lambda _: (_ for _ in ()).throw(RuntimeError("a bug")))
    with pytest.raises(RuntimeError, match="a bug"):
        runner.run()


@pytest.mark.fault("F56")
@pytest.mark.parametrize(
    "message",
    [
        "CUDA error: device-side assert triggered",
        "CUDA error: an illegal memory access was encountered",
        "CUDA error: unspecified launch failure",
    ],
)
def test_after_an_error_that_stays_the_learner_does_not_go_on(
    monkeypatch: pytest.MonkeyPatch, message: str
) -> None:
    """Such a process gives wrong answers from then on, so no second attempt is made in it."""
    attempts = []

    def fail(_: Any) -> None:
        attempts.append(1)
        raise RuntimeError(message)

    monkeypatch.setattr(Updater, "run", fail)
    ctx = context()
    _, _, runner = started(ctx)
    with pytest.raises(RuntimeError, match=message):
        runner.run()
    assert len(attempts) == 1
    assert ctx.counters["out_of_memory"] == 0


def test_out_of_memory_is_known_in_all_its_forms() -> None:
    assert out_of_memory(torch.OutOfMemoryError("x"))
    assert out_of_memory(RuntimeError("CUDA error: out of memory"))
    assert out_of_memory(RuntimeError("CUBLAS_STATUS_ALLOC_FAILED when calling cublasCreate"))
    broken = RuntimeError("operation failed due to a previous error during capture")
    assert not out_of_memory(broken)
    broken.__context__ = torch.OutOfMemoryError("x")
    assert out_of_memory(broken)


class Published:
    """Stands for the weights wire."""

    def __init__(self) -> None:
        self.sent: list[tuple[Floats, int]] = []

    def publish(self, vector: Floats, updates: int, _env_steps: int) -> None:
        self.sent.append((vector.copy(), updates))


DEVICES = ["cpu", pytest.param("cuda", marks=on_gpu)]


@pytest.mark.parametrize("device", DEVICES)
def test_what_is_published_is_the_policy_after_that_many_updates(device: str) -> None:
    algorithm = build(SACConfig(hidden=(16,)), SPEC)
    policy = Policy(SPEC, PolicyForm(hidden=(16,)))
    published = Published()
    ctx: Any = SimpleNamespace(weights=published, control=SimpleNamespace(env_steps=0))

    def updater() -> Updater:
        torch.manual_seed(3)
        replay = Replay(LAYOUT, 1000, torch.device(device))
        replay.insert(numbered(0, 1000))
        state = init_state(algorithm, 0, replay.device)
        made = Updater(UpdateSetup(algorithm, replay, state, 64, (1e-3, 0.01), chunk=4))
        made.run()  # prepares
        torch.manual_seed(4)
        return made

    slow, expected = updater(), {}
    for count in range(8, 48, 4):
        slow.run()
        expected[count] = slow.state["actor"][: policy.vector.size].cpu().numpy().copy()
    fast, publisher = updater(), PolicyPublisher(ctx, policy.vector.size, torch.device(device))
    for count in range(8, 48, 4):
        fast.run()
        publisher.send(fast.policy, count)
        assert len(published.sent) >= (count - 8) // 4, "at most one is on its way"
    publisher.flush()
    publisher.flush()
    assert [updates for _, updates in published.sent] == list(expected)
    for vector, updates in published.sent:
        np.testing.assert_array_equal(vector, expected[updates])
    broken = torch.full_like(fast.policy, float("nan"))
    assert not (publisher.send(broken, 99) and publisher.flush())
    assert publisher.flush(), "a broken policy is reported once"
    assert len(published.sent) == len(expected)


@on_gpu
def test_page_locked_rows_are_read_by_the_gpu() -> None:
    replay = Replay(LAYOUT, 1000, torch.device("cuda"), "pinned")
    assert replay.data.is_cuda
    assert not replay.rows.is_cuda
    for first in range(0, 200_000, 7000):
        replay.insert(numbered(first, 7000))
    total = first + 7000
    assert read_all(replay) == list(range(total - 1000, total))
    torch.testing.assert_close(replay.data.cpu(), replay.rows, rtol=0, atol=0)


@on_gpu
def test_a_replay_leaves_the_gpu_with_all_its_rows() -> None:
    replay = Replay(LAYOUT, 1000, torch.device("cuda"))
    replay.insert(numbered(0, 1700))
    replay.move_to_host()
    assert replay.placement == "pinned"
    assert read_all(replay) == list(range(700, 1700))
    replay.insert(numbered(1700, 100))
    assert read_all(replay) == list(range(800, 1800))


@on_gpu
@pytest.mark.parametrize("placement", ["gpu", "pinned"])
def test_no_row_is_torn_while_copies_and_updates_run_side_by_side(placement: Any) -> None:
    """Gathers in a graph, as updates are, against inserts in a tight loop; two graphs are in flight."""
    device = torch.device("cuda")
    replay = Replay(LAYOUT, 5000, device, placement, slack=3000)
    replay.insert(numbered(0, 5000))
    torn = torch.zeros((), dtype=torch.long, device=device)
    outside = torch.zeros((), dtype=torch.long, device=device)
    newest = torch.full((), 5000.0, device=device)

    def look() -> None:
        for _ in range(20):
            uniform = torch.rand(20_000, device=device)
            batch = gather(replay.data, draw(replay.data, replay.window, uniform), LAYOUT)
            torn.add_((batch.obs != batch.reward[:, None]).sum())
            torn.add_((batch.next_obs != batch.reward[:, None]).sum())
            low = batch.reward < newest - 5000
            outside.add_((low | (batch.reward >= newest)).sum())

    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        look()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        look()
    ends = [torch.cuda.Event(blocking=True) for _ in range(2)]
    total, rng = 5000, np.random.default_rng(0)
    for _ in range(1500):
        count = int(rng.integers(1, 3000))
        new = numbered(total, count)

        def fill(buffer: Rows, new: Rows = new) -> Rows:
            buffer[: len(new)] = new
            return buffer[: len(new)]

        replay.insert_from(fill)
        total += count
        newest.fill_(total)
        graph.replay()
        ends[0].record()
        ends.reverse()
        ends[0].synchronize()
    torch.cuda.synchronize()
    assert total < 2**24, "the numbers are exact"
    assert int(torn) == 0
    assert int(outside) == 0


@on_gpu
def test_batches_sampled_on_the_host_hold_the_rows_of_the_replay() -> None:
    algorithm = build(SACConfig(hidden=(16,)), SPEC)
    replay = Replay(LAYOUT, 1000, torch.device("cuda"), "host")
    assert replay.sampled_on_host
    replay.insert(numbered(0, 1500))
    state = init_state(algorithm, 0, replay.device)
    updater = Updater(UpdateSetup(algorithm, replay, state, 256, (1e-3, 0.01), chunk=4))
    counts = np.zeros(1500)
    for _ in range(100):
        updater.run()
        rows = updater._batches[256].data.view(-1, LAYOUT.width)
        assert (rows == rows[:, :1]).all()
        np.add.at(counts, rows[:, 0].long().cpu().numpy(), 1)
    assert float(updater.state["updates"]) == 400
    assert counts[:500].sum() == 0
    assert counts[500:].min() > 50
    assert counts[500:].max() < 170  # 102 are expected of each


def test_a_replay_takes_memory_as_rows_come() -> None:
    """Its compiled form is made from a second one of the same shape."""
    before = psutil.Process().memory_info().rss
    made = [kind(LAYOUT, (1 << 31) // LAYOUT.row_bytes, CPU) for kind in (Replay, ReplayShape)]
    assert psutil.Process().memory_info().rss - before < 1 << 28
    assert all(replay.rows.nbytes > 1 << 30 for replay in made)
