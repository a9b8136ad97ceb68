"""How fast a run learns, as far as rates tell it: what the automatic settings maximise."""

from __future__ import annotations

BATCH_WORTH, SAMPLING_WORTH = 0.5, 0.25
LARGE_BATCH = 2048
"""To which power of batch size and env steps learning goes on, and the size from which more rows bring nothing;
docs/tuning.md has the runs."""


def learning_speed(update_hz: float, batch_size: int, sample_hz: float) -> float:
    """What the settings are to make large, as far as rates tell it: how fast a run learns.

    A larger batch makes an update worth more, but less than in proportion and only up to a size; so do
    fresher transitions.
    """
    worth = min(batch_size, LARGE_BATCH) ** BATCH_WORTH
    return float(update_hz * worth * sample_hz**SAMPLING_WORTH)
