"""Fills the networks of a new run with those of another that fit."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from spreeze.algos.base import Algorithm
from spreeze.errors import DamagedFile
from spreeze.learning.running_statistics import ADOPTED_ROWS, adopted_statistics
from spreeze.learning.state import TrainingState, named
from spreeze.roles.context import Context
from spreeze.settings.start_from import Fit, Source, find_source, fit_networks
from spreeze.store.manifest import read_checkpoint
from spreeze.store.tensors import MAX_HEADER_BYTES

TARGETS = {"actor": "target_actor", "critic": "target"}


def take_over(ctx: Context, algorithm: Algorithm, state: TrainingState) -> None:
    """Copy what fits into the state. Adam's moments and the counts are new, as the run is."""
    config, vectors = ctx.config, named(state)
    source = find_source(str(config.start_from), Path(config.runs))
    fit = fit_networks(source, config.algo, dataclasses.asdict(config.hyper), ctx.spec.to_json())
    limit = sum(vector.nbytes for vector in vectors.values()) + MAX_HEADER_BYTES
    stored = _training(source, limit) if source.complete else _policy(source, algorithm, limit)
    for name in ("actor", "critic"):
        if name not in vectors or name not in stored or getattr(fit, name) is not None:
            continue
        start = stored[name]  # of a policy: without the parameters that follow it
        if len(start) > len(vectors[name]):
            raise DamagedFile(f"{source.path} does not fit these networks: {name}.")
        for into in (name, TARGETS[name]):
            if into in vectors:
                vectors[into][: len(start)].copy_(start)
    _take_statistics(fit, algorithm, stored, vectors)
    for line in fit.lines():
        ctx.note(line)


def _training(source: Source, limit: int) -> dict[str, Tensor]:
    """The vectors of a training checkpoint."""
    tensors = read_checkpoint(source.path, ["train.safetensors"], limit=limit).tensors["train"]
    return {name: torch.from_numpy(array) for name, array in tensors.items()}


def _policy(source: Source, algorithm: Algorithm, limit: int) -> dict[str, Tensor]:
    """The same vectors, as far as a policy has them."""
    tensors = read_checkpoint(source.path, ["policy.safetensors"], limit=limit).tensors["policy"]
    names = algorithm.config.build_policy(algorithm.spec).form.shapes(algorithm.spec)
    network = [tensors[n].ravel() for n in names if not n.startswith("obs_") and n in tensors]
    found = {
        "critic" if algorithm.actor_loss is None else "actor": torch.from_numpy(
            np.concatenate(network)
        )
    }
    if "obs_mean" in tensors:
        mean, scale = (torch.from_numpy(tensors[name]) for name in ("obs_mean", "obs_scale"))
        found["stats"] = adopted_statistics(mean, scale)
    return found


def _take_statistics(
    fit: Fit, algorithm: Algorithm, stored: dict[str, Tensor], vectors: dict[str, Tensor]
) -> None:
    if fit.statistics is not None or "stats" not in stored or "stats" not in vectors:
        return
    stats = stored["stats"].clone()
    if algorithm.config.normalise_reward and not fit.source.hyper.get("normalise_reward"):
        stats[0].clamp_(max=ADOPTED_ROWS)  # those of returns begin here
    vectors["stats"].copy_(stats)
