"""What an environment does wrong costs its episode, is counted, and ends the process only if it happens too often."""

from __future__ import annotations

from contextlib import nullcontext
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from hypothesis import given
from hypothesis import strategies as st

from spreeze.envs.group import EnvGroup
from spreeze.envs.guard import ATTEMPTS, EnvGuard
from spreeze.envs.inspect import inspect_env
from spreeze.envs.loop_stepper import LoopStepper
from spreeze.envs.stepping import make_stepper, play_to_end
from spreeze.envs.vector_stepper import VectorStepper
from spreeze.errors import EnvBroken
from spreeze.faults import Doing
from spreeze.rows import RowFormat, row_layout
from spreeze.testing import FaultEnv, fault_env

SPEC = inspect_env(FaultEnv, "FaultEnv")


@pytest.fixture(autouse=True)
def same_faults_every_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each instance draws its own faults: count them from 0 in every test."""
    monkeypatch.setattr(fault_env, "_instances", count())


class Played:
    """Environments that have made some steps, and the rows of those."""

    def __init__(self, stepper: Any, num_steps: int, **form: Any) -> None:
        row_form = RowFormat(gamma=0.9, **form)
        self.group, self.guard = EnvGroup(stepper, SPEC, row_form), stepper.guard
        num = self.group.num_envs
        rows = np.zeros(num, row_layout(SPEC, row_form).dtype)
        actions, log_prob = np.full((num, 1), 0.01, np.float32), np.zeros(num, np.float32)
        self.rows: list[Any] = []
        self.per_step: list[int] = []
        try:
            self.group.reset(seed=0)
            for _ in range(num_steps):
                num_rows = self.group.step(actions, actions, 0, rows, log_prob)
                self.per_step.append(num_rows)
                self.rows += [row.copy() for row in rows[:num_rows]]
        finally:
            self.group.close()


LENIENT = 1.0


def vector(mode: AutoresetMode, guard: EnvGuard | None = None, **fault: Any) -> VectorStepper:
    """Two environments, of which the second one fails."""
    makers = [FaultEnv, partial(FaultEnv, **fault)]
    make = partial(SyncVectorEnv, makers, autoreset_mode=mode)
    return VectorStepper(make(), make, guard)


def loop(num: int = 1, guard: EnvGuard | None = None, **fault: Any) -> LoopStepper:
    stepper = make_stepper(partial(FaultEnv, **fault), num, guard)
    assert isinstance(stepper, LoopStepper)
    return stepper


def check_rows(rows: list[Any]) -> None:
    """Every row leads from one step of an episode to the next, with numbers that are sound."""
    for row in rows:
        assert abs(row["obs"]).max() < 5
        assert row["obs"][1] == row["next_obs"][1], "the goal of the same episode"
        assert row["next_obs"][0] - row["obs"][0] == pytest.approx(0.003, abs=1e-5)
        assert row["reward"] == pytest.approx(-abs(row["next_obs"][2]), abs=1e-5)


@pytest.mark.fault("F42")
@pytest.mark.parametrize("fault", ["raise", "sys_exit", "bad_shape", "bad_dtype"])
@pytest.mark.parametrize("where", ["step", "reset"])
def test_an_environment_that_raises_is_made_again(fault: str, where: Any) -> None:
    guard, chance = EnvGuard(most_errors=LENIENT), 0.02 if where == "step" else 0.1
    stepper = loop(num=3, guard=guard, fault=fault, where=where, probability=chance)
    before = list(stepper.envs)
    played = Played(stepper, 400)
    assert guard.errors > 0
    assert stepper.envs != before
    check_rows(played.rows)
    assert len(played.rows) >= 3 * 400 - played.guard.errors
    assert played.guard.rejected == 0


@pytest.mark.fault("F42")
@pytest.mark.parametrize("mode", AutoresetMode)
@pytest.mark.parametrize("fault", ["raise", "sys_exit"])
def test_a_vector_environment_that_raises_is_made_again_as_a_whole(mode: Any, fault: str) -> None:
    stepper = vector(mode, fault=fault, at=30)
    first = stepper.env
    played = Played(stepper, 100)
    assert stepper.env is not first
    assert played.guard.errors == 3
    assert played.per_step.count(0) >= 3
    check_rows(played.rows)


@pytest.mark.fault("F42")
def test_rows_end_before_the_step_that_raised_and_are_not_terminated() -> None:
    played = Played(loop(fault="raise", at=8), 12, n_step=3)
    first = [row for row in played.rows if row["obs"][1] == played.rows[0]["obs"][1]]
    assert len(first) == 7, "the steps before it"
    assert [float(row["discount"]) for row in first[-3:]] == pytest.approx([0.9**3, 0.9**2, 0.9])
    assert first[-1]["next_obs"][0] - first[-1]["obs"][0] == pytest.approx(0.003, abs=1e-5)


@pytest.mark.fault("F42")
def test_a_segment_is_cut_where_an_environment_raised() -> None:
    played = Played(loop(fault="raise", at=7), 12, segment=4)
    goals = played.rows[1]["obs"].reshape(4, 3)[:, 1]
    assert goals[0] == goals[1] != goals[2]
    assert list(played.rows[1]["ended"][:2]) == [0, 1]
    assert played.rows[1]["discount"][:2] == pytest.approx([0.9] * 2), "not terminated"


@pytest.mark.fault("F42")
def test_a_run_of_faults_is_as_reproducible_as_one_without() -> None:
    runs = [Played(loop(num=2, fault="raise", at=90), 200).rows for _ in range(2)]
    assert len(runs[0]) == 2 * 200 - 4
    np.testing.assert_array_equal(*(np.array([row["obs"] for row in rows]) for rows in runs))


@pytest.mark.fault("F42")
def test_an_evaluation_episode_that_raises_has_no_return() -> None:
    stepper = loop(num=2, fault="raise", at=3)
    still = np.zeros((2, 1), np.float32)
    episodes = play_to_end(stepper, SPEC, lambda _: still, 2, seed=0)
    stepper.close()
    assert [episode.length for episode in episodes] == [2, 2]
    assert np.isnan([episode.total for episode in episodes]).all()


@pytest.mark.fault("F42")
@pytest.mark.parametrize("where", ["step", "reset"])
@pytest.mark.parametrize(("fault", "cause"), [("raise", "the arm fell off"), ("nan", "nan as")])
def test_an_environment_that_never_works_is_given_up_with_its_own_traceback(
    where: Any, fault: str, cause: str
) -> None:
    guard = EnvGuard()
    with pytest.raises(EnvBroken, match=cause) as caught:
        Played(loop(num=2, guard=guard, fault=fault, where=where), 100)
    assert caught.value.newest == guard.newest
    assert "in a row" in caught.value.why
    assert guard.errors + guard.rejected <= 2 * ATTEMPTS
    if fault == "raise":
        assert "fault_env.py" in guard.newest


@pytest.mark.fault("F42")
@pytest.mark.parametrize("mode", AutoresetMode)
def test_a_vector_environment_that_never_works_is_given_up(mode: Any) -> None:
    with pytest.raises(EnvBroken, match="the arm fell off"):
        Played(vector(mode, fault="raise"), 100)


@pytest.mark.fault("F42")
@pytest.mark.fault("F43")
@pytest.mark.parametrize("fault", ["raise", "nan"])
@pytest.mark.parametrize(("every", "given_up"), [(150, False), (60, True)])
def test_the_rate_of_faults_decides(fault: str, every: int, given_up: bool) -> None:
    """The limit is one fault in 100 env steps."""

    class Now(gym.Wrapper[Any, Any, Any, Any]):
        num = 0

        def step(self, action: Any) -> Any:
            Now.num += 1
            return broken.step(action) if Now.num % every == 0 else self.env.step(action)

    broken = FaultEnv(fault=fault)
    broken.reset(seed=0)
    stepper = LoopStepper([Now(FaultEnv())], lambda: Now(FaultEnv()))
    with pytest.raises(EnvBroken, match=r"--limits\.env-errors") if given_up else nullcontext():
        Played(stepper, 6000)
    assert (stepper.guard.errors + stepper.guard.rejected == 20) is given_up


def test_an_environment_that_breaks_after_a_long_good_time_is_given_up_soon() -> None:
    guard = EnvGuard(most_errors=0.01)
    guard.steps = 10_000_000

    def go_on() -> None:
        for _ in range(200):
            guard.steps += 20
            guard.reject(1, "x")

    with pytest.raises(EnvBroken):
        go_on()
    assert guard.rejected == 100


@pytest.mark.fault("F43")
@pytest.mark.parametrize("fault", ["nan", "inf", "huge"])
@pytest.mark.parametrize("part", ["obs", "reward"])
def test_bad_numbers_are_refused_and_the_episode_cut(fault: str, part: Any) -> None:
    guard = EnvGuard(most_errors=LENIENT)
    played = Played(loop(num=3, guard=guard, fault=fault, part=part, probability=0.02), 400)
    assert guard.rejected > 0
    assert len(played.rows) == 3 * 400 - played.guard.rejected
    check_rows(played.rows)
    assert played.guard.errors == 0


@pytest.mark.fault("F43")
@pytest.mark.parametrize("fault", ["nan", "inf", "huge"])
def test_a_reset_with_bad_numbers_is_repeated(fault: str) -> None:
    guard = EnvGuard(most_errors=LENIENT)
    played = Played(loop(guard=guard, fault=fault, where="reset", probability=0.2), 1000)
    assert guard.rejected > 0
    assert len(played.rows) == 1000
    check_rows(played.rows)


@pytest.mark.fault("F43")
@pytest.mark.parametrize("mode", AutoresetMode)
@pytest.mark.parametrize("where", ["step", "reset"])
@pytest.mark.parametrize("fault", ["nan", "huge"])
def test_bad_numbers_of_a_vector_environment_are_refused(mode: Any, where: Any, fault: str) -> None:
    guard, chance = EnvGuard(most_errors=LENIENT), 0.05 if where == "step" else 0.4
    played = Played(vector(mode, guard, fault=fault, where=where, probability=chance), 600)
    assert guard.rejected > 0
    check_rows(played.rows)


@pytest.mark.fault("F44")
@pytest.mark.parametrize(
    ("part", "value", "said"),
    [
        ("obs", np.zeros(1, np.float32), r"shape \(1,\).*its space says shape \(3,\)"),
        ("obs", 0.0, r"shape \(\)"),
        ("obs", np.zeros((1, 3)), r"shape \(1, 3\)"),
        ("obs", np.zeros(3, object), "type object"),
        ("obs", np.zeros(3, complex), "type complex128"),
        ("obs", np.array(["0.1"] * 3), "type <U3"),
        ("obs", None, "type object"),
        ("reward", np.zeros(1), "reward"),
        ("reward", "1.5", "reward '1.5'"),
        ("reward", 1j, "reward 1j"),
        ("reward", None, "reward None"),
        ("terminated", np.array([True]), "terminated"),
        ("terminated", "False", "terminated = 'False'"),
        ("terminated", float("nan"), "terminated = nan"),
    ],
)
def test_what_does_not_fit_its_space_is_refused_and_named(part: str, value: Any, said: str) -> None:
    class Odd(FaultEnv):
        def step(self, action: Any) -> Any:
            result = dict(zip(("obs", "reward", "terminated"), super().step(action), strict=False))
            return *(result | {part: value}).values(), False, {}

    guard = EnvGuard()
    with pytest.raises(EnvBroken, match=said):
        Played(LoopStepper([Odd()], Odd, guard), 10)
    assert guard.errors == ATTEMPTS
    assert guard.rejected == 0


@pytest.mark.fault("F44")
@pytest.mark.parametrize(
    ("index", "value"),
    [
        (0, np.zeros((2, 1))),
        (0, np.zeros(3)),
        (0, np.zeros((2, 3), complex)),
        (1, 0.0),
        (1, np.zeros((2, 1))),
        (2, np.zeros(1, bool)),
        (3, np.array(["no", "no"])),
    ],
)
def test_what_a_vector_environment_returns_must_fit_too(index: int, value: Any) -> None:
    class Odd(SyncVectorEnv):
        def step(self, actions: Any) -> Any:
            result = list(super().step(actions))
            result[index] = value
            return tuple(result)

    make = partial(Odd, [FaultEnv] * 2)
    guard = EnvGuard()
    with pytest.raises(EnvBroken, match="of shape"):
        Played(VectorStepper(make(), make, guard), 10)
    assert guard.errors == ATTEMPTS


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16, np.int64, np.uint8, bool])
def test_numbers_of_any_type_are_taken(dtype: Any) -> None:
    class Typed(FaultEnv):
        def step(self, action: Any) -> Any:
            return np.ones(3, dtype), dtype(1), np.bool_(False), False, {}

    played = Played(LoopStepper([Typed()], Typed), 5)
    assert [row["reward"] for row in played.rows] == [1] * 5
    assert all((row["next_obs"] == 1).all() for row in played.rows)


@pytest.mark.fault("F44")
@pytest.mark.parametrize("where", ["step", "reset"])
@pytest.mark.parametrize(
    ("usual", "later", "said"),
    [
        (np.float32, np.uint8, "type uint8; earlier ones were float32"),
        (np.float64, bool, "type bool; earlier ones were float64"),
        (np.int64, np.float32, "type float32; earlier ones were int64"),
        (np.float32, np.float64, None),
        (np.uint8, np.int64, None),
    ],
)
def test_another_kind_of_numbers_than_before_is_refused_and_named(
    usual: Any, later: Any, said: str | None, where: str
) -> None:
    class Changing(FaultEnv):
        num = 0

        def change(self, method: str, result: Any) -> Any:
            Changing.num += method == where
            dtype = later if method == where and Changing.num == 3 else usual
            return np.zeros(3, dtype), *result[1:]

        def reset(self, **options: Any) -> Any:
            return self.change("reset", super().reset(**options))

        def step(self, action: Any) -> Any:
            return self.change("step", super().step(action))

    guard = EnvGuard()
    Played(LoopStepper([Changing()], Changing, guard), 100)
    assert guard.errors == (0 if said is None else 1)
    assert (said or "") in guard.newest


@pytest.mark.fault("F44")
def test_another_kind_of_numbers_from_a_vector_environment_is_refused() -> None:
    class Changing(SyncVectorEnv):
        num = 0

        def step(self, actions: Any) -> Any:
            Changing.num += 1
            obs, *rest = super().step(actions)
            return obs.astype(np.uint8 if Changing.num == 5 else np.float32), *rest

    make, guard = partial(Changing, [FaultEnv] * 2), EnvGuard()
    Played(VectorStepper(make(), make, guard), 10)
    assert guard.errors == 1
    assert "type uint8; earlier ones were float32" in guard.newest


@pytest.mark.fault("F42")
@pytest.mark.fault("F43")
@pytest.mark.parametrize("fault", ["raise", "nan"])
def test_where_no_fault_is_allowed_the_first_one_is_the_last(fault: str) -> None:
    guard = EnvGuard(most_errors=0.0)
    with pytest.raises(EnvBroken, match=r"1 of its last 500 env steps.*--limits\.env-errors"):
        Played(loop(guard=guard, fault=fault, at=500), 600)
    assert guard.errors + guard.rejected == 1


@pytest.mark.fault("F43")
@given(
    st.integers(1, 8),
    st.integers(1, 40),
    st.sampled_from([1.0, 1e3, 1e8, 1e19, 1e30]),
    st.lists(
        st.tuples(
            st.integers(0, 10_000),
            st.sampled_from([np.nan, np.inf, -np.inf, 3e38, -3e38, 1.02, 1.0, 0.98, -1.02]),
        ),
        max_size=3,
    ),
    st.integers(0, 2**32 - 1),
)
def test_the_quick_check_misses_nothing(
    num: int, size: int, largest: float, faults: list[tuple[int, float]], seed: int
) -> None:
    """Against a plain look at every number; finite factors of 1 are multiples of the limit."""
    rng = np.random.default_rng(seed)
    numbers = (rng.uniform(-1, 1, num * (size + 1)) * rng.choice([1e-3, 1, largest])).astype("f4")
    np.clip(numbers, -largest, largest, out=numbers)
    for place, fault in faults:
        numbers[place % len(numbers)] = fault if abs(fault) > 2 else fault * largest
    guard = EnvGuard(largest=largest)
    reward, obs = numbers[:num], numbers[num:].reshape(num, size)
    fine = [
        all(np.isfinite(x) and abs(x) <= np.float32(largest) for x in (reward[i], *obs[i]))
        for i in range(num)
    ]
    assert guard.fine_rows(reward, obs).tolist() == fine
    if guard.all_fine(numbers):
        assert all(fine)
    if np.square(numbers.astype(float)).sum() < min(0.9 * largest**2, 9e37):
        assert guard.all_fine(numbers), "nor does it cry wolf"


def test_what_a_process_does_is_on_the_record_while_it_does_it() -> None:
    seen: dict[str, list[int]] = {"construct": [], "reset": [], "step": []}
    guard = EnvGuard()

    class Watched(FaultEnv):
        def __init__(self) -> None:
            super().__init__(fault="raise", at=5)
            seen["construct"].append(int(guard.doing))

        def reset(self, **options: Any) -> Any:
            seen["reset"].append(int(guard.doing))
            return super().reset(**options)

        def step(self, action: Any) -> Any:
            seen["step"].append(int(guard.doing))
            return super().step(action)

    stepper = make_stepper(Watched, 2, guard)
    assert guard.doing == Doing.OTHER
    Played(stepper, 12)
    assert guard.doing == Doing.OTHER
    assert set(seen["construct"]) == {Doing.CONSTRUCT}
    assert len(seen["construct"]) == 2 + 2 * 2
    assert set(seen["reset"]) == {Doing.RESET}
    assert set(seen["step"]) == {Doing.STEP}
    moves = len(seen["construct"]) + len(seen["reset"])
    assert guard.words["env_calls"] == moves, "each has its own time limit"


def test_reports_are_few_and_each_kind_is_among_them() -> None:
    reports: list[str] = []
    guard = EnvGuard(most_errors=1.0, report=reports.append)
    for kind in (ValueError, KeyError):
        for i in range(30):
            guard.steps += 100
            guard.error(kind(str(i)))
    assert len(reports) == 2
    assert "KeyError: '29'" in guard.newest


class Diverging(gym.Wrapper[Any, Any, Any, Any]):
    """Gives the simulation an impossible speed at some steps of an episode."""

    def __init__(self, env_id: str, at: int) -> None:
        super().__init__(gym.make(env_id, disable_env_checker=True))
        self.at, self.num = at, 0

    def reset(self, **options: Any) -> Any:
        self.num = 0
        return super().reset(**options)

    def step(self, action: Any) -> Any:
        self.num += 1
        if self.num == self.at:
            self.unwrapped.data.qvel[:] = 1e12  # type: ignore[attr-defined]
        return super().step(action)


@pytest.mark.fault("F45")
@pytest.mark.parametrize("env_id", ["HalfCheetah-v5", "Hopper-v5"])
@pytest.mark.parametrize("at", [1, 2, 8])
def test_a_simulation_that_diverged_and_reset_itself_is_noticed(
    env_id: str, at: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # MuJoCo writes a log of warnings to the working directory
    spec = inspect_env(env_id, env_id)
    stepper = make_stepper(partial(Diverging, env_id, at), 1)
    group = EnvGroup(stepper, spec)
    rows = np.zeros(1, row_layout(spec).dtype)
    group.reset(seed=0)
    actions = np.zeros((1, spec.action_size), np.float32)
    stored = [group.step(actions, actions, 0, rows) for _ in range(at + 1)]
    group.close()
    assert stored == [1] * (at - 1) + [0, *([1] if at > 1 else [0])]
    assert group.guard.simulation_resets == (1 if at > 1 else 2)
    assert group.guard.errors == group.guard.rejected == 0


@pytest.mark.fault("F45")
@pytest.mark.parametrize("mode", AutoresetMode)
@pytest.mark.parametrize("at", [1, 2, 8])
def test_a_simulation_that_diverged_in_a_vector_environment_is_noticed(
    mode: AutoresetMode, at: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    env_id = "Hopper-v5"
    spec = inspect_env(env_id, env_id)
    makers = [partial(gym.make, env_id), partial(Diverging, env_id, at)]
    make = partial(SyncVectorEnv, makers, autoreset_mode=mode)
    group = EnvGroup(VectorStepper(make(), make), spec)
    rows = np.zeros(2, row_layout(spec).dtype)
    group.reset(seed=0)
    actions = np.zeros((2, spec.action_size), np.float32)
    stored = [group.step(actions, actions, 0, rows) for _ in range(at + 2)]
    group.close()
    assert stored == [2] * (at - 1) + [1, 2, 2]
    assert group.guard.simulation_resets == 1
    assert group.guard.errors == group.guard.rejected == 0


def two_pendulums(mode: AutoresetMode) -> Any:
    """Their episodes are short, so that they are reset often."""
    return SyncVectorEnv([partial(gym.make, "InvertedPendulum-v5")] * 2, autoreset_mode=mode)


@pytest.mark.fault("F45")
@pytest.mark.parametrize("mode", AutoresetMode)
def test_resets_of_a_vector_environment_are_not_taken_for_divergence(mode: AutoresetMode) -> None:
    spec = inspect_env("InvertedPendulum-v5", "InvertedPendulum-v5")
    group = EnvGroup(make_stepper(partial(two_pendulums, mode), 2), spec)
    rows = np.zeros(2, row_layout(spec).dtype)
    group.reset(seed=0)
    actions = np.ones((2, spec.action_size), np.float32)
    for _ in range(200):
        group.step(actions, actions, 0, rows)
    group.close()
    assert group.guard.simulation_resets == 0


@pytest.mark.fault("F45")
def test_a_sound_simulation_is_left_alone() -> None:
    spec = inspect_env("HalfCheetah-v5", "HalfCheetah-v5")
    group = EnvGroup(make_stepper("HalfCheetah-v5", 2), spec)
    rows = np.zeros(2, row_layout(spec).dtype)
    group.reset(seed=0)
    actions = np.zeros((2, spec.action_size), np.float32)
    assert sum(group.step(actions, actions, 0, rows) for _ in range(1010)) == 2 * 1010
    group.close()
    assert group.guard.simulation_resets == 0
