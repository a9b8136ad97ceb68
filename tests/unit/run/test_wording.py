"""Facts about a run in words."""

from __future__ import annotations

from spreeze.run.controller import BATCH, RATIO, SAMPLERS, Change, Decision, Rates
from spreeze.run.wording import describe_changes, describe_decision


def test_the_tuners_numbers_can_be_read() -> None:
    changes = (
        Change(SAMPLERS, 4.0, 6.0),
        Change(BATCH, 131072.0, 1048576.0),
        Change(RATIO, 1 / 12, 0.125),
    )
    text = describe_changes(changes)
    assert "samplers 4 -> 6" in text
    assert "batch 131,072 -> 1,048,576" in text
    assert "0.0833 -> 0.125" in text
    assert describe_decision(Decision(Rates(1.0, 1.0, 1), changes[:1], 0.184, True)) == (
        "samplers 4 -> 6: +18 % (kept)"
    )
