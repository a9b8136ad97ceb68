"""Documents: small JSON values in shared memory. Each has one writer and any number of readers.

A document travels like the policy, by the protocol of `weights`: a reader gets a whole one or keeps what it has.

| document         | written by | what it holds                                                  |
|------------------|------------|----------------------------------------------------------------|
| `env_calls`      | supervisor | the newest call of each method, for every environment          |
| `evaluation`     | evaluator  | the metrics of the newest evaluation                           |
| `cluster`        | relay      | the nodes of a cluster, and what happened to them              |
| `episodes_played`| relay, or a node's evaluator | the episodes of an evaluation on another machine |
| `episodes.<i>`   | sampler i  | what its environments said at the ends of episodes: sums and numbers |
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np

from spreeze.wires.arena import Arena, Block
from spreeze.wires.weights import Weights, weights_blocks

ENV_CALLS, EVALUATION, CLUSTER = "env_calls", "evaluation", "cluster"
EPISODES_PLAYED, PLAYED_SIZE = "episodes_played", 512 << 10
SIZES = {ENV_CALLS: 64 << 10, EVALUATION: 64 << 10, CLUSTER: 128 << 10}
EPISODES_SIZE = 40 << 10
"""Bytes of each document; all the names that a sampler may record fit."""


class TooLong(ValueError):
    """A value does not fit into its document."""


def episodes_of(sampler: int) -> str:
    """The name of a sampler's document."""
    return f"episodes.{sampler}"


def document_blocks(num_samplers: int, plays_elsewhere: bool = False) -> list[Block]:
    """Memory for the documents of one run; `plays_elsewhere`: whether other machines play evaluations."""
    sizes = SIZES | {episodes_of(i): EPISODES_SIZE for i in range(num_samplers)}
    sizes |= {EPISODES_PLAYED: PLAYED_SIZE} if plays_elsewhere else {}
    return [block for name, size in sizes.items() for block in weights_blocks(size // 4, name)]


class Document:
    """Both ends of one document. One process writes it, any number read it."""

    def __init__(self, arena: Arena, name: str) -> None:
        """Open it in an arena that was created with `document_blocks`."""
        self._wire = Weights(arena, name)
        self._spare = np.zeros(self._wire.size, np.float32)
        self._read = 0
        self.value: Any = None
        """What the last `refresh` that returned True has read."""

    def write(self, value: Any) -> None:
        """Make this the newest content; TooLong if it does not fit. Text of JSON may end in spaces."""
        size = 4 * self._wire.size
        text = _as_bytes(value)
        if len(text) > size:
            raise TooLong(f"{len(text):,} bytes of JSON; at most {size:,} fit")
        self._wire.publish(np.frombuffer(text.ljust(size), np.float32), 0, 0)

    def write_metrics(self, head: dict[str, Any], metrics: Mapping[str, float | None]) -> None:
        """Write `head`, and beside it as many of the metrics as fit."""
        room = 4 * self._wire.size - len(_as_bytes(head | {"metrics": {}}))
        fitting = {}
        for name, value in metrics.items():
            room -= len(_as_bytes({name: value}))
            if room < 0:
                break
            fitting[name] = value
        self.write(head | {"metrics": fitting})

    def refresh(self) -> bool:
        """Read the newest content if there is a new one; returns whether there was."""
        stamp = self._wire.fetch(self._spare, self._read)
        if stamp is None:
            return False
        self._read = stamp.version
        self.value = json.loads(self._spare.tobytes())
        return True


class EpisodeReports:
    """The documents of all samplers, read together."""

    def __init__(self, arena: Arena, num_samplers: int) -> None:
        """Open all of them."""
        self._documents = [Document(arena, episodes_of(i)) for i in range(num_samplers)]

    def means(self) -> dict[str, float]:
        """The mean of each metric, over the episodes of all samplers."""
        totals: dict[str, tuple[float, int]] = {}
        for document in self._documents:
            document.refresh()
            for name, (total, num) in (document.value or {}).items():
                before = totals.get(name, (0.0, 0))
                totals[name] = before[0] + total, before[1] + num
        return {name: total / num for name, (total, num) in totals.items()}


def _as_bytes(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False).encode(errors="surrogatepass")
