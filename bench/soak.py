"""Does a run last? Real processes under constant faults, for as long as you like.

    python bench/soak.py [--minutes 30] [--json FILE]     a run whose roles are killed and whose environments fail
    python bench/soak.py --rows 1e8 [--json FILE]         rows that prove themselves, from samplers that are killed

The first kills a random role every two seconds, gives NaN in one of a thousand steps, lets an environment hang for
an hour every half minute, and looks at memory, files, threads and processes once a second. It passes if
nothing grows beyond its budget, the task is learned, the faults are counted and nothing is left behind. The second
recomputes every number of every row. Both exit with 1 if something is wrong.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from forked import forked  # noqa: E402
from soaking import soak  # noqa: E402
from spreeze.bench.result import machine_facts  # noqa: E402
from verified_rows import stress  # noqa: E402


def main() -> None:
    """Run one of the two, print the report and write it."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--rows", type=lambda text: int(float(text)))
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    report = rows(args.rows) if args.rows else run(args.minutes)
    text = json.dumps({"machine": machine_facts(), **report}, indent=1)
    print(text)
    if args.json:
        args.json.write_text(f"{text}\n")
    sys.exit(1 if report["problems"] else 0)


def run(minutes: float) -> dict[str, Any]:
    """A run under faults."""
    with tempfile.TemporaryDirectory() as folder:
        return soak(Path(folder), 60 * minutes).report()


def rows(num_rows: int) -> dict[str, Any]:
    """Rows that are recomputed."""
    began = time.monotonic()
    with forked() as children:
        counts = stress(children, num_rows, num_kills=100)
    problems = [f"{counts.wrong} rows are wrong"] if counts.wrong else []
    seconds = round(time.monotonic() - began, 1)
    return {**dataclasses.asdict(counts), "seconds": seconds, "problems": problems}


if __name__ == "__main__":
    main()
