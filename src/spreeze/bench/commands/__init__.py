"""`spreeze bench`: measures, always with its reference in the same run. A module per benchmark."""

from __future__ import annotations

from importlib import import_module

from spreeze.errors import UsageError

KINDS = {
    "sampling": "env steps per second, against the bare simulator in the same processes",
    "learner": "updates per second, against plain modules and optimisers",
    "wires": "rows per second and age of weights, against queue, pipe and file",
    "pipeline": "both together in a real run, against each alone",
    "time-to-score": "seconds from the command to a score, against other frameworks",
}


def main(arguments: list[str], _started_s: float) -> int:
    """Run the benchmark that is named first."""
    kind = arguments[0] if arguments else "--help"
    if kind in ("-h", "--help"):
        print("Benchmarks, each against its reference in the same run:\n")
        for name, what in KINDS.items():
            print(f"  spreeze bench {name:13} {what}")
        return 0
    if kind not in KINDS:
        raise UsageError([f"there is no benchmark {kind!r}; there are {', '.join(KINDS)}."])
    module = import_module(f"spreeze.bench.commands.{kind.replace('-', '_')}")
    code: int = module.main(arguments[1:])
    return code
