"""The updaters that a learner may have; they are used alike."""

from __future__ import annotations

from spreeze.learning.data_parallel.updater import DataParallelUpdater
from spreeze.learning.two_devices.updater import TwoDeviceUpdater
from spreeze.learning.updater import Updater

AnyUpdater = Updater | TwoDeviceUpdater | DataParallelUpdater
"""On one device, on two, or on several that share each batch."""
