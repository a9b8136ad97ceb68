"""Runs one update and records its operations, those of the backward pass included."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from spreeze.learning.step import StepFunction


class NotRecordable(Exception):
    """The update may be other operations the next time, or changes tensors in place."""


class Operation(NamedTuple):
    """One operation of an update, and what it returned when it was recorded."""

    function: Callable[..., Any]
    args: tuple[Any, ...]
    options: dict[str, Any]
    result: Any

    @property
    def name(self) -> str:
        """Such as `aten.add.Tensor`."""
        return str(self.function)


class Recording(NamedTuple):
    """The operations of one update."""

    inputs: Sequence[Tensor]
    operations: list[Operation]
    outputs: Sequence[Tensor]

    def is_last_use(self, operation: Operation) -> bool:
        """Whether nothing looks at the tensor that an operation changes through another one afterwards."""
        number = next(i for i, other in enumerate(self.operations) if other is operation)
        changed = operation.args[0]
        place = changed.untyped_storage().data_ptr()
        before = (*self.inputs, *_tensors(op.result for op in self.operations[: number + 1]))
        others = {
            id(x) for x in before if x is not changed and x.untyped_storage().data_ptr() == place
        }
        later = [(op.args, op.options) for op in self.operations[number + 1 :]]
        return not any(id(x) in others for x in _tensors([*later, self.outputs]))


def _tensors(values: Iterable[Any]) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(list(values)) if isinstance(leaf, Tensor)]


class _Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Records every operation. It sees them below autograd."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.operations: list[Operation] = []

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # otherwise the first operation imports all of torch._dynamo: 0.7 s

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        self.operations.append(Operation(func, args, kwargs or {}, result))
        return result


def record(step: StepFunction, inputs: Sequence[Tensor]) -> Recording:
    """The operations of one call of `step`; raises NotRecordable if the next call may differ."""
    with torch.no_grad(), _Recorder() as recorder:
        outputs = step(*inputs)
    for operation in recorder.operations:
        if not all(isinstance(leaf, Tensor | None) for leaf in tree_leaves(operation.result)):
            raise NotRecordable(f"{operation.name} gives Python a number")
        if torch.Tag.nondeterministic_seeded in operation.function.tags:
            raise NotRecordable(f"{operation.name} draws random numbers")
    return Recording(inputs, recorder.operations, outputs)
