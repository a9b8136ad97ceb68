"""The section of the config for a Ray cluster. Imports no Ray."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from spreeze.knobs import knob


@dataclass(frozen=True, kw_only=True)
class RayConfig:
    """Samplers on the other machines of a Ray cluster, with `--backend ray`."""

    address: str | None = knob(
        None,
        "The cluster: HOST:PORT, or auto for the one that this machine belongs to. None: a Ray on this machine alone.",
    )
    interface: str | None = knob(
        None,
        "This machine's address in the cluster. None: the one that Ray has here, if the internet does not route it.",
    )
    samplers: int | None = knob(
        None,
        "Sampler processes on each node. None: one per CPU that Ray has there.",
        low=1,
        high=1024,
    )
    envs_per_process: int | None = knob(
        None,
        "Environments per sampler on the nodes. None: by the time of a step there.",
        low=1,
        high=4096,
    )
    evaluate: Literal["here", "nodes"] = knob(
        "here",
        "Where the episodes of evaluations are played: beside the learner, or on the nodes in turn.",
    )
    max_lag_s: float = knob(
        10.0,
        "Drop blocks of rows whose policy was replaced so many seconds ago.",
        low=0.1,
        high=3600,
    )
    grace_s: float = knob(
        60.0, "Outposts end when the learner's machine was silent for this long.", low=1, high=3600
    )
