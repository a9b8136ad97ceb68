"""Documents: small JSON values, whole or not at all."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from spreeze.wires.arena import Arena
from spreeze.wires.documents import (
    CLUSTER,
    ENV_CALLS,
    EVALUATION,
    SIZES,
    Document,
    EpisodeReports,
    TooLong,
    document_blocks,
    episodes_of,
)


@pytest.fixture
def arena() -> Iterator[Arena]:
    arena = Arena.create(document_blocks(2))
    yield arena
    arena.close()


def test_a_reader_sees_the_newest_value_once(arena: Arena) -> None:
    writer, reader = Document(arena, ENV_CALLS), Document(arena, ENV_CALLS)
    assert not reader.refresh()
    for value in ([1, "ü\ud800", None], {"a": 0.25}):
        writer.write(value)
    assert reader.refresh()
    assert reader.value == {"a": 0.25}
    assert not reader.refresh(), "nothing new"
    assert Document(arena, ENV_CALLS).refresh(), "a new process reads it too"


def test_documents_do_not_mix(arena: Arena) -> None:
    Document(arena, ENV_CALLS).write("calls")
    Document(arena, EVALUATION).write("evaluation")
    Document(arena, CLUSTER).write("cluster")
    read = {name: Document(arena, name) for name in SIZES}
    assert all(document.refresh() for document in read.values())
    assert {name: document.value for name, document in read.items()} == {
        ENV_CALLS: "calls",
        EVALUATION: "evaluation",
        CLUSTER: "cluster",
    }


def test_what_does_not_fit_is_refused_and_the_old_value_stays(arena: Arena) -> None:
    document = Document(arena, ENV_CALLS)
    document.write("x" * (SIZES[ENV_CALLS] - 2))
    with pytest.raises(TooLong, match="at most 65,536"):
        document.write("y" * (SIZES[ENV_CALLS] - 1))
    assert document.refresh()
    assert set(document.value) == {"x"}


def test_a_torn_value_is_not_read(arena: Arena) -> None:
    document = Document(arena, ENV_CALLS)
    document.write({"a": 1})
    arena[f"{ENV_CALLS}.data"].view("u1")[1, 3] ^= 1
    assert not document.refresh()


def test_as_many_metrics_are_written_as_fit(arena: Arena) -> None:
    document = Document(arena, EVALUATION)
    metrics: dict[str, float | None] = {f"🤖{'x' * i}": None for i in range(2000)}
    document.write_metrics({"is_best": True}, metrics)
    assert document.refresh()
    kept = document.value["metrics"]
    assert document.value["is_best"] is True
    assert list(kept) == list(metrics)[: len(kept)]
    more = {**kept, list(metrics)[len(kept)]: None}
    with pytest.raises(TooLong):
        document.write({"is_best": True, "metrics": more})
    document.write_metrics({}, {"a": 1.0})
    assert document.refresh()
    assert document.value == {"metrics": {"a": 1.0}}


def test_samplers_that_report_a_number_are_averaged(arena: Arena) -> None:
    reports = EpisodeReports(arena, 2)
    assert reports.means() == {}
    Document(arena, episodes_of(0)).write({"a": (3.0, 3), "b": (5.0, 1)})
    Document(arena, episodes_of(1)).write({"a": (2.0, 1)})
    assert reports.means() == {"a": 1.25, "b": 5.0}, "each episode counts alike"
