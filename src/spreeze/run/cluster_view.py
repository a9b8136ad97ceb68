"""What the supervisor knows of the other machines of a cluster: what the relay tells."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from spreeze.errors import UsageError
from spreeze.machine.scratch import Scratch
from spreeze.roles.relay.ray_cluster import RAY_FOLDER, try_cluster
from spreeze.run.processes.call import CallFailed, call
from spreeze.run.processes.pool import Processes
from spreeze.run.progress import Progress
from spreeze.settings.config import Config
from spreeze.wires.arena import Arena
from spreeze.wires.control import Control
from spreeze.wires.documents import CLUSTER, Document

COUNTS = (
    *("nodes", "samplers", "nodes_lost", "nodes_refused", "env_steps", "blocks", "rows"),
    *("rows_late", "rows_refused", "rows_lost", "blocks_lost", "evaluations"),
)
SUBMITTED = "RAY_JOB_CONFIG_JSON_ENV_VAR"
"""What Ray gives to a submitted job."""
ALONE = "Note: this run starts Ray on this machine; --ray.address names a cluster."
NO_NODES = "Note: there is no other node in the cluster yet. Nodes may join while the run goes on."


def reach_cluster(config: Config, processes: Processes | None) -> list[str]:
    """Try the cluster out in a throw-away process; returns what to say about it. UsageError without one."""
    if config.backend != "ray" or processes is None:
        return []
    if config.ray.address is None:
        return [ALONE]
    if SUBMITTED in os.environ:
        # The cluster is there. And Ray would delete the job's working folder when the trial disconnects.
        return []
    try:
        names = call(processes, try_cluster, config.ray)
    except CallFailed as error:
        raise UsageError(
            [f"--ray.address {config.ray.address}: no connection to this cluster. {error.cause}"]
        ) from None
    if not names:
        return [NO_NODES]
    others = f"{', '.join(names[:5])}{' ...' if len(names) > 5 else ''}"
    return [f"Note: {len(names)} other nodes in the cluster: {others}"]


class ClusterView:
    """Follows the relay's document, and keeps the folder of a Ray that the run starts."""

    def __init__(self, arena: Arena, progress: Progress, config: Config) -> None:
        """Nothing is known yet."""
        starts_ray = config.backend == "ray" and config.ray.address is None
        # It is the supervisor's, because a relay that is killed cannot remove it.
        self._scratch = Scratch(RAY_FOLDER) if starts_ray else None
        self._document, self._progress = Document(arena, CLUSTER), progress
        self._num_events = 0
        self.nodes: list[dict[str, Any]] = []
        """Each node: name, state, why, samplers, env_steps."""

    @property
    def scratch(self) -> Path | None:
        """Where a Ray that the run starts keeps its files."""
        return self._scratch.path if self._scratch else None

    def close(self) -> None:
        """Remove what Ray has left."""
        if self._scratch is not None:
            self._scratch.remove()

    def look(self) -> None:
        """Show problems among the warnings, and write events to the metrics."""
        if not self._document.refresh():
            return
        value = self._document.value
        self.nodes = value["nodes"]
        self._progress.standing["cluster"] = value["problems"]
        new = value["num_events"] - self._num_events
        self._num_events = value["num_events"]
        for event in value["events"][-new:] if new else ():
            self._progress.record_event(event)


def cluster_summary(control: Control) -> dict[str, int]:
    """The counts of the other machines, for summary.json."""
    return {name: int(control.relay[name]) for name in COUNTS}
