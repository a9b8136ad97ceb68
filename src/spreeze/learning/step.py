"""One round of updates from the replay, as the function that is traced and compiled.

A compiled function takes and returns a flat list of tensors. `UpdateStep` alone knows their order;
everywhere else the inputs and outputs have names.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import NamedTuple

import torch
from torch import Tensor

from spreeze.algos.base import Algorithm, Metrics
from spreeze.learning.minibatch import draw, draw_by_priority, gather
from spreeze.learning.state import (
    Part,
    TrainingState,
    other_names,
    state_names,
    to_state,
    to_tensors,
)
from spreeze.learning.update import (
    actor_update,
    critic_update,
    normalise,
    update,
    with_statistics,
)
from spreeze.networks import ranks
from spreeze.rows import Batch, Layout

StepFunction = Callable[..., Sequence[Tensor]]
"""A round of updates on flat tensors: an `UpdateStep`, or its compiled form."""

MIN_ERROR = 1e-6
"""Added to the error of each row, so that every row may be drawn."""


class UpdateInputs(NamedTuple):
    """What one round reads."""

    priorities: Tensor | None
    """The priority of every row of the replay; None if rows are drawn uniformly."""
    data: Tensor
    """Rows to draw from, [rows, width]."""
    window: Tensor
    """Start and length of the part of `data` that may be drawn."""
    uniform: Tensor
    """Numbers in [0, 1) that choose the rows of the batch."""
    noise: Tensor
    """Gaussian noise for the losses: [2, rows, action], or [1, rows, action] for the actor's part."""
    rates: Tensor
    """Learning rate, tau and what is added to the entropy: as data, so that one compiled form serves all."""
    others: TrainingState
    """Vectors of the other part, for an update on two devices."""
    state: TrainingState


class UpdateOutputs(NamedTuple):
    """What one round returns."""

    state: TrainingState
    metrics: Tensor
    """In the order of `UpdateStep.metric_names`."""
    drawn: Tensor | None = None
    """Indices of the rows that were drawn, if by priority."""
    priorities: Tensor | None = None
    """Their new priorities."""
    actor_rows: Tensor | None = None
    """Rows that the actor learns from, if this is the critic's part."""


class UpdateStep:
    """A round of updates, or one part of it. Call it with flat tensors, like its compiled form."""

    def __init__(
        self, algorithm: Algorithm, layout: Layout, part: Part = "whole", num_ranks: int = 1
    ) -> None:
        """The update of `algorithm` on rows of `layout`; `num_ranks` processes share each batch."""
        self._algorithm, self._part, self._num_ranks = algorithm, part, num_ranks
        self._layout = layout
        self._steps = algorithm.config.row_format().segment
        self._power, self._correction = algorithm.config.priorities()
        self._prioritised = self._power > 0 and part != "actor"
        self.names = state_names(algorithm, part)
        self.others = other_names(algorithm, part)
        self._select_state = itemgetter(*self.names)
        self.metric_names: tuple[str, ...] = ()
        """Known after the first call."""

    def __call__(self, *flat: Tensor) -> tuple[Tensor, ...]:
        """One round on flat tensors; pure."""
        out = self.run(self.unflatten_inputs(flat))
        extras = [x for x in (out.drawn, out.priorities, out.actor_rows) if x is not None]
        return (*self._select_state(out.state), out.metrics, *extras)

    @property
    def output_names(self) -> tuple[str, ...]:
        """The name of each tensor that a call returns."""
        names = [*self.names, "metrics"]
        if self._prioritised:
            names += ["drawn", "priorities"]
        if self._part == "critic":
            names.append("actor_rows")
        return tuple(names)

    def flatten_inputs(self, inputs: UpdateInputs) -> tuple[Tensor, ...]:
        """The inputs as a call takes them."""
        return (
            *(() if inputs.priorities is None else (inputs.priorities,)),
            inputs.data,
            inputs.window,
            inputs.uniform,
            inputs.noise,
            inputs.rates,
            *to_tensors(inputs.others, self.others),
            *self._select_state(inputs.state),
        )

    def unflatten_inputs(self, flat: Sequence[Tensor]) -> UpdateInputs:
        """The inverse of `flatten_inputs`."""
        priorities, rest = (flat[0], flat[1:]) if self._prioritised else (None, flat)
        data, window, uniform, noise, rates, *vectors = rest
        num = len(self.others)
        others, state = to_state(self.others, vectors[:num]), to_state(self.names, vectors[num:])
        return UpdateInputs(priorities, data, window, uniform, noise, rates, others, state)

    def unflatten_outputs(self, flat: Sequence[Tensor]) -> UpdateOutputs:
        """What a call has returned, by name."""
        num = len(self.names)
        state, metrics, extras = to_state(self.names, flat[:num]), flat[num], flat[num + 1 :]
        drawn, priorities = extras[:2] if self._prioritised else (None, None)
        rows = extras[-1] if self._part == "critic" else None
        return UpdateOutputs(state, metrics, drawn, priorities, rows)

    def run(self, inputs: UpdateInputs) -> UpdateOutputs:
        """One round; pure, but for the numbers of other ranks."""
        with ranks.sharing(self._num_ranks):
            return self._run(inputs)

    def _run(self, inputs: UpdateInputs) -> UpdateOutputs:
        data, weight = inputs.data, None
        if inputs.priorities is not None:
            num = inputs.window[1] * self._layout.drawn_steps
            index, weight = draw_by_priority(
                inputs.priorities, num, inputs.uniform, self._correction
            )
        else:
            index = draw(data, inputs.window, inputs.uniform, self._layout.drawn_steps)
        batch = gather(data, index, self._layout, self._steps)
        batch = batch._replace(entropy_shift=inputs.rates[2].expand_as(batch.weight))
        if weight is not None:
            batch = batch._replace(weight=weight)
        after, metrics = self._update({**inputs.others, **inputs.state}, batch, inputs)
        errors = metrics.pop("errors", None)
        self.metric_names = tuple(metrics)
        values = torch.stack([value.reshape(()).float() for value in metrics.values()])
        out = UpdateOutputs(after, values)
        if errors is not None:
            out = out._replace(drawn=index, priorities=(errors + MIN_ERROR) ** self._power)
        if self._part == "critic":
            rows = data[index.chunk(self._algorithm.config.critic_updates())[-1]]
            out = out._replace(actor_rows=rows)
        return out

    def _update(
        self, before: TrainingState, batch: Batch, inputs: UpdateInputs
    ) -> tuple[TrainingState, Metrics]:
        algorithm, noise = self._algorithm, inputs.noise
        lr, tau = inputs.rates[0], inputs.rates[1]
        if self._part == "whole":
            return update(algorithm, before, batch, noise, lr, tau)
        if self._part == "critic":
            before = with_statistics(algorithm, before, batch)
            batch = normalise(algorithm, before, batch)
            return critic_update(algorithm, before, batch, noise[0], lr, tau)
        batch = normalise(algorithm, before, batch)
        return actor_update(algorithm, before, batch, noise[-1], lr, tau)
