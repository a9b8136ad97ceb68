"""Knobs: what a field's metadata says, how subclasses inherit it, and which values it allows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import pytest

from spreeze.algos import ALGORITHMS
from spreeze.algos.base import update_knobs
from spreeze.algos.off_policy import OffPolicyConfig
from spreeze.knobs import Auto, Effect, KnobGroup, flag, knob, knobs_of


@dataclass(frozen=True, kw_only=True)
class Base(KnobGroup):
    """Knobs of every kind."""

    count: int | Auto = knob("auto", "How many.", low=1, high=8, effect=Effect.DATA)
    share: float | None = knob(0.5, "How much.", low=0, high=1)
    pair: tuple[float, float] = knob((0.0, 1.0), "From and to.", low=0, high=10)
    widths: tuple[int, ...] = knob((64,), "Layers.", low=1, high=100, effect=Effect.NETWORK)
    place: Literal["gpu", "host"] | Auto = knob("auto", "Where.")
    on: bool = knob(False, "Whether.")


@dataclass(frozen=True, kw_only=True)
class Changed(Base):
    """Other defaults."""

    count: int | Auto = 4
    share: float | None = knob(0.25, "How much now.")
    extra: int = 3


def test_a_changed_default_keeps_help_bounds_and_effect() -> None:
    base, changed = knobs_of(Base)["count"], knobs_of(Changed)["count"]
    assert (Changed().count, changed.default) == (4, 4)
    assert (changed.help, changed.low, changed.high) == (base.help, base.low, base.high)
    assert changed.effect is Effect.DATA


def test_what_a_subclass_states_again_wins_and_the_rest_is_inherited() -> None:
    share = knobs_of(Changed)["share"]
    assert (share.default, share.help, share.high) == (0.25, "How much now.", 1)
    assert knobs_of(Base)["share"].help == "How much."


def test_a_field_without_metadata_is_a_knob_too() -> None:
    extra = knobs_of(Changed)["extra"]
    assert (extra.help, extra.effect) == ("", Effect.UPDATE)
    assert extra.problem("--extra", 10**12) is None
    assert extra.problem("--extra", "many") == "--extra many: must be a whole number."


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("count", 1), ("count", 8), ("count", "auto"), ("share", None), ("share", 1)),
        *(("pair", (0, 10)), ("pair", (2.0, 2.0)), ("widths", (1, 100, 3)), ("place", "gpu")),
        ("on", True),
    ],
)
def test_allowed_values_pass(name: str, value: Any) -> None:
    assert knobs_of(Base)[name].problem("--x", value) is None


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("count", 0, "--x 0: must be a whole number from 1 to 8, or auto."),
        ("count", 1.5, "--x 1.5: must be a whole number from 1 to 8, or auto."),
        ("count", True, "--x True: must be a whole number from 1 to 8, or auto."),
        ("count", None, "--x None: must be a whole number from 1 to 8, or auto."),
        ("share", "auto", "--x auto: must be a number from 0 to 1, or None."),
        ("share", float("nan"), "--x nan: must be a number from 0 to 1, or None."),
        ("pair", (2, 1), "--x 2 1: must be two numbers from 0 to 10, the smaller first."),
        ("pair", (1, 2, 3), "--x 1 2 3: must be two numbers from 0 to 10, the smaller first."),
        ("widths", (), "--x : must be one or more whole numbers from 1 to 100."),
        ("widths", 64, "--x 64: must be one or more whole numbers from 1 to 100."),
        ("place", "gpuu", "--x gpuu: must be one of gpu, host, auto. Did you mean gpu?"),
        ("place", 3, "--x 3: must be one of gpu, host, auto."),
        ("on", "yes", "--x yes: must be true or false."),
    ],
)
def test_other_values_are_refused_with_what_is_allowed(name: str, value: Any, message: str) -> None:
    assert knobs_of(Base)[name].problem("--x", value) == message


def test_flags_are_what_you_type() -> None:
    assert flag("learner.batch_size") == "--learner.batch-size"


@pytest.mark.parametrize("algo", ALGORITHMS)
def test_every_number_of_an_algorithm_has_bounds_that_hold_its_default(algo: str) -> None:
    for name, known in knobs_of(ALGORITHMS[algo].config).items():
        assert known.help, name
        assert known.problem(name, known.default) is None
        if known.type not in (None, bool):
            assert known.low > -float("inf"), name
            assert known.high < float("inf"), name


def test_only_rates_reach_a_users_update_as_data() -> None:
    knobs = {"lr": 1, "gamma": 2, "beta2": 3, "hidden": 4}
    assert update_knobs(OffPolicyConfig, knobs, own=False) == {"beta2": 3, "hidden": 4}
    assert update_knobs(OffPolicyConfig, knobs, own=True) == {"gamma": 2, "beta2": 3, "hidden": 4}
