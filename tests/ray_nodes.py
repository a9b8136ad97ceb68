"""Several Ray nodes on this machine, in a process of their own. Commands come on standard input, answers go to its output.

start CPUS [CPUS ...]    a head without CPUs, and a node for each number; answers the address
add CPUS                 another node; answers its number
kill NUMBER              kill all processes of a node; the head is number 0
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from typing import Any

import psutil
from ray.cluster_utils import Cluster

STORE = 100 << 20


def kill(node: Any) -> None:
    """All its processes, as if the machine had lost its power."""
    processes = [info.process for infos in node.all_processes.values() for info in infos]
    pids = [process.pid for process in processes]
    family = [child for pid in pids for child in psutil.Process(pid).children(recursive=True)]
    for process in (*processes, *family):
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()


def main() -> None:
    cluster = Cluster(
        initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False}
    )
    nodes = [cluster.head_node]
    for line in sys.stdin:
        command, *numbers = line.split()
        answer: Any = None
        if command in ("start", "add"):
            nodes += [cluster.add_node(num_cpus=int(n), object_store_memory=STORE) for n in numbers]
            answer = cluster.address
        if command == "kill":
            kill(nodes[int(numbers[0])])
        print(json.dumps(answer), flush=True)
    for node in nodes:
        kill(node)
    os._exit(0)


if __name__ == "__main__":
    main()
