"""What callbacks cost: runs in turns with ten callbacks and with none.

    python bench/callback_cost.py [ENV SECONDS PAIRS]     default: HalfCheetah-v5 30 3

Each callback reads all metrics once a second, logs a number and counts evaluations. The hooks run in the process that
supervises the run, so its CPU seconds are compared: they do not depend on what else runs on the machine. Prints them as a
share of the time of all cores, the CPU time of the hooks alone, and updates and env steps per second.
"""

import os
import resource
import sys
import tempfile
import time
from statistics import median
from typing import Any

import spreeze

NUM = 10


class Watch(spreeze.Callback):
    """What people write on the first day."""

    fatal = True

    def __init__(self, number: int) -> None:
        """Log under its own name."""
        self.name, self.evaluations = f"watch{number}", 0

    def on_log(self, run: Any, metrics: dict[str, float]) -> None:
        """Sum all metrics up."""
        run.log(self.name, sum(metrics.values()))

    def on_evaluation(self, run: Any, result: Any) -> None:
        """Count."""
        self.evaluations += 1
        run.log(f"{self.name}_evaluations", self.evaluations)


def cpu_s() -> float:
    """CPU seconds of this process, which supervises the run."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def measure(env: str, seconds: float, num: int) -> dict[str, float]:
    """One run with so many callbacks."""
    with tempfile.TemporaryDirectory() as folder:
        began, began_s = cpu_s(), time.monotonic()
        run = spreeze.train(
            env, time=seconds, runs=folder, quiet=True, callbacks=[Watch(i) for i in range(num)]
        )
        all_s = (time.monotonic() - began_s) * len(os.sched_getaffinity(0))
        hooks_s = run.summary["callbacks"]["cpu_s"] if num else 0.0
        return {
            "supervisor, % of all cores": 100 * (cpu_s() - began) / all_s,
            "hooks, % of all cores": 100 * hooks_s / all_s,
            "updates/s": run.summary["update_hz"],
            "env steps/s": run.summary["sample_hz"],
        }


def main() -> None:
    """Measure in turns and print the medians."""
    env, seconds, pairs = (*sys.argv[1:], *["HalfCheetah-v5", "30", "3"][len(sys.argv) - 1 :])
    measure(env, 5.0, 0)  # what is measured and compiled once
    found: dict[int, list[dict[str, float]]] = {0: [], NUM: []}
    for turn in range(2 * int(pairs)):
        num = (0, NUM, NUM, 0)[turn % 4]
        found[num].append(measure(env, float(seconds), num))
    for name in found[0][0]:
        none, ten = (median(one[name] for one in found[num]) for num in (0, NUM))
        print(f"{name:28} none {none:10,.3f}   {NUM} callbacks {ten:10,.3f}")


if __name__ == "__main__":
    main()
