"""`spreeze bench`: the benchmarks, one module each."""

from __future__ import annotations

from importlib import import_module

from spreeze.errors import UsageError

BENCHMARKS = {
    "sampling": "env steps per second, against the bare simulator",
    "learner": "updates per second, against plain PyTorch",
    "wires": "speed of the shared memory, against queue, pipe and file",
    "start-up": "when a run reaches each milestone of its start",
    "pipeline": "samplers and learner together, against each alone",
    "cluster": "samplers on several Ray nodes, and the way of a row from there, against a lane",
    "ablations": "batch sizes, numbers of samplers, transports, one device against two; and a whole run",
    "ratios": "the ratios of the others, against those of an earlier version",
    "time-to-score": "seconds from the command to a score, against other frameworks",
}


def main(arguments: list[str], _started_s: float) -> int:
    """Run the benchmark named by the first argument."""
    name = arguments[0] if arguments else "--help"
    if name in ("-h", "--help"):
        print("Benchmarks, each against a reference in the same run:\n")
        for known, what in BENCHMARKS.items():
            print(f"  spreeze bench {known:13} {what}")
        return 0
    if name not in BENCHMARKS:
        raise UsageError([f"there is no benchmark {name!r}. There are: {', '.join(BENCHMARKS)}."])
    module = import_module(f"spreeze.bench.commands.{name.replace('-', '_')}")
    code: int = module.main(arguments[1:])
    return code
