"""An estimate of how fast a run learns, from its rates: what the automatic settings maximise."""

from __future__ import annotations

BATCH_WORTH, SAMPLING_WORTH = 0.5, 0.25
LARGE_BATCH = 2048
"""Exponents of batch size and env steps in the learning speed, and the batch size beyond which more rows
bring nothing. docs/tuning.md has the runs."""


def learning_speed(update_hz: float, batch_size: int, sample_hz: float) -> float:
    """An estimate of how fast a run learns, from its rates.

    A larger batch makes an update worth more, but less than in proportion and only up to a size. So
    do more env steps per second, because transitions are fresher.
    """
    worth = min(batch_size, LARGE_BATCH) ** BATCH_WORTH
    return float(update_hz * worth * sample_hz**SAMPLING_WORTH)
