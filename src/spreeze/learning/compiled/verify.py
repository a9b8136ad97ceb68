"""Checks that a compiled update computes what the plain one does."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import dataclass

import torch
from torch import Tensor

from spreeze.algos import algorithm_file
from spreeze.learning.compiled.key import CompileKey
from spreeze.learning.compiled.load import CompiledUpdate
from spreeze.learning.step import StepFunction, UpdateStep
from spreeze.learning.updater import Updater
from spreeze.store.files import write_atomic

TOLERANCE, ROUGH = 1e-2, 3.0
"""How far a compiled update may be from the exact one: this fraction of each vector's norm, plus this
multiple of the plain update's own distance from it, since both may compute in bfloat16."""

ONE_ROW_TOLERANCE = 0.5
"""The same fraction for a replay without memory: its one row is the whole batch, so errors do not average
out."""


@dataclass(frozen=True)
class Verification:
    """What a verification found."""

    mismatch: str | None
    """What differs; None if the compiled update is right."""
    from_record: bool = False
    """Whether an earlier run verified it."""


def verify(compiled: CompiledUpdate, updater: Updater) -> Verification:
    """Compare one compiled update with the plain one, unless an earlier run did.

    `updater` knows the names of its metrics afterwards, which only a plain update says.
    """
    record = VerificationRecord(compiled)
    if (names := record.metric_names()) is not None:
        updater.plain.metric_names = names
        return Verification(None, from_record=True)
    mismatch = find_mismatch(compiled.key, updater, compiled.step)
    if mismatch is None:
        record.write(updater.plain.metric_names)
    return Verification(mismatch)


def find_mismatch(
    key: CompileKey, updater: Updater, step: StepFunction, tolerance: float = TOLERANCE
) -> str | None:
    """What is wrong with one update by `step`, compared with the plain one and an exact one."""
    inputs = updater.inputs(updater.batch_size)
    alike = key.algorithm("float32")
    exact = UpdateStep(alike, updater.layout, updater.part, updater.num_ranks)
    with torch.no_grad():
        results = zip(exact(*inputs), updater.plain(*inputs), step(*inputs), strict=True)
        for name, (right, plain, ours) in zip(updater.plain.output_names, results, strict=True):
            off, usual = _distance(ours, right), _distance(plain, right)
            length = float(right.float().norm())
            if not off <= tolerance * length + ROUGH * usual + 1e-6:
                return f"{name} of length {length:.3g} is off by {off:.3g}, plain by {usual:.3g}"
    return None


def _distance(a: Tensor, b: Tensor) -> float:
    return float((a - b).float().norm())


class VerificationRecord:
    """A file beside a compiled update that says it was verified, so that later runs need not do it again.

    Verifying needs a plain update first, which on a GPU takes most of a second until all its kernels are
    loaded. User algorithms are verified again in every run; their dependencies are unknown.
    """

    def __init__(self, compiled: CompiledUpdate) -> None:
        """The record of this file; a file with other contents has another one."""
        self._path = compiled.path.with_suffix(".right")
        built_in = algorithm_file(compiled.key.algo) is None
        self._digest = compiled.digest if built_in else ""

    def metric_names(self) -> tuple[str, ...] | None:
        """The names of the update's metrics, if it was verified."""
        try:
            found = json.loads(self._path.read_text())
            right = bool(self._digest) and found["form"] == self._digest
            return tuple(found["metrics"]) if right else None
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def write(self, metric_names: tuple[str, ...]) -> None:
        """Record that it was verified."""
        if self._digest:
            with suppress(OSError):  # disk full: the next run verifies again
                write_atomic(self._path, {"form": self._digest, "metrics": metric_names})
