"""The layout of rows: the record view and the matrix view are the same memory."""

from __future__ import annotations

import numpy as np
import pytest

import cases
from spreeze.rows import RowFormat, as_matrix, row_layout
from spreeze.spec import EnvSpec

FORMATS = {
    "transition": RowFormat(),
    "segment": RowFormat(segment=3),
    "with past return": RowFormat(past_return=True),
    "segment with past return": RowFormat(segment=2, past_return=True),
}
each_format = pytest.mark.parametrize("form", FORMATS.values(), ids=FORMATS.keys())


@each_format
def test_each_field_is_at_its_columns_of_the_matrix(form: RowFormat) -> None:
    layout = row_layout(cases.BOX, form)
    rows = np.zeros(4, layout.dtype)
    matrix = as_matrix(rows)
    assert matrix.shape == (4, layout.width)
    assert np.shares_memory(matrix, rows)
    for number, (name, columns) in enumerate(layout.columns().items(), start=1):
        matrix[:, columns] = number
        values = rows[name].view(np.float32) if name == "version" else rows[name]
        assert (values == number).all(), name
        assert columns.stop - columns.start == layout.size(name)
    assert (matrix > 0).all(), "the fields cover the row"
    assert layout.row_bytes == layout.dtype.itemsize


@each_format
def test_only_segments_have_log_probabilities_and_ends(form: RowFormat) -> None:
    layout = row_layout(cases.BOX, form)
    assert ({"log_prob", "ended"} <= layout.columns().keys()) == (form.segment > 1)
    assert ("past_return" in layout.columns()) == form.past_return
    assert layout.size("obs") == form.segment * cases.BOX.obs_size


def test_a_discrete_action_is_one_number() -> None:
    assert row_layout(cases.DISCRETE).size("action") == 1


@pytest.mark.parametrize(("obs_size", "rows"), [(4, 32_768), (1000, 8_000), (1_000_000, 1024)])
def test_spare_rows_are_many_but_not_more_than_64_mb(obs_size: int, rows: int) -> None:
    spec = EnvSpec(
        id="x", obs_shape=(obs_size,), action_shape=(1,), action_low=(-1,), action_high=(1,)
    )
    assert row_layout(spec).slack_rows == pytest.approx(rows, rel=0.05)
