"""The arithmetic of places in tensors, against the places themselves."""

from __future__ import annotations

import math

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from spreeze.learning.fusion.indices import Index, contiguous_strides, flatten, unflatten

SHAPES = st.lists(st.integers(1, 5), min_size=1, max_size=4)


def values(index: Index, variables: dict[str, int]) -> int:
    """What a kernel computes."""
    names: dict[str, int] = dict(variables)
    return int(eval(index.text().replace("/", "//").replace("u", ""), {}, names))


@given(SHAPES, st.data())
@settings(max_examples=150, deadline=None)
def test_views_of_views_find_the_element(shape: list[int], data: st.DataObject) -> None:
    """Reshapes, permutations and slices of a tensor whose elements are their own places."""
    places = np.arange(math.prod(shape)).reshape(shape)
    steps = []
    view = places
    for _step in range(data.draw(st.integers(1, 4))):
        kind = data.draw(st.sampled_from(["permute", "slice", "reshape"]))
        old = view.shape
        if kind == "permute":
            order = data.draw(st.permutations(range(view.ndim)))
            view = view.transpose(order)
            steps.append(("permute", old, tuple(order)))
        elif kind == "slice":
            dim = data.draw(st.integers(0, view.ndim - 1))
            start = data.draw(st.integers(0, old[dim] - 1))
            step = data.draw(st.integers(1, 3))
            cut = [slice(None)] * view.ndim
            cut[dim] = slice(start, None, step)
            view = view[tuple(cut)]
            steps.append(("slice", old, (dim, start, step)))
        else:
            size = view.size
            new = data.draw(st.sampled_from([d for d in range(1, size + 1) if size % d == 0]))
            view = view.reshape(new, -1)
            steps.append(("reshape", old, view.shape))
    index = unflatten(Index.of("i", view.size), view.shape)
    for kind, old, what in reversed(steps):
        if kind == "permute":
            index = tuple(index[what.index(dim)] for dim in range(len(old)))
        elif kind == "slice":
            dim, start, step = what
            index = (*index[:dim], index[dim] * step + start, *index[dim + 1 :])
        else:
            index = unflatten(flatten(index, contiguous_strides(what)), old)
    offset = flatten(index, contiguous_strides(tuple(shape)))
    for i, place in enumerate(view.ravel()):
        assert values(offset, {"i": i}) == place
        assert offset.smallest <= place <= offset.largest


@given(SHAPES)
def test_a_place_that_is_taken_apart_and_put_together_is_the_same_expression(
    shape: list[int],
) -> None:
    """The scheduler compares expressions: only equal ones are known to be the same element."""
    whole = Index.of("i", math.prod(shape))
    assert flatten(unflatten(whole, tuple(shape)), contiguous_strides(tuple(shape))) == whole
