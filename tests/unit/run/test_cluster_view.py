"""What the supervisor shows of other machines, and how it looks for them before the run."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from spreeze.errors import UsageError
from spreeze.run import cluster_view
from spreeze.run.cluster_view import ALONE, NO_NODES, SUBMITTED, ClusterView, reach_cluster
from spreeze.run.processes.call import CallFailed
from spreeze.settings.defaults import config_with, default_config
from spreeze.wires.arena import Arena
from spreeze.wires.documents import CLUSTER, Document, document_blocks


@pytest.fixture
def arena() -> Iterator[Arena]:
    arena = Arena.create(document_blocks(1))
    yield arena
    arena.close()


def test_problems_stand_and_each_event_is_told_once(arena: Arena) -> None:
    told: list[str] = []
    progress: Any = SimpleNamespace(standing={}, record_event=told.append)
    config = default_config("sac", env="x")
    view, relay = ClusterView(arena, progress, config), Document(arena, CLUSTER)
    view.look()
    nodes = [{"name": "a", "state": "lost"}]
    for events, num in ((["a samples"], 1), (["a samples", "b was lost"], 2), (["x"] * 20, 22)):
        relay.write({"nodes": nodes, "problems": ["b"], "events": events, "num_events": num})
        view.look()
        view.look()
    assert told == ["a samples", "b was lost", *["x"] * 20]
    assert progress.standing == {"cluster": ["b"]}
    assert view.nodes == nodes


def test_a_ray_that_the_run_starts_has_a_folder_until_the_run_ends(arena: Arena) -> None:
    progress: Any = SimpleNamespace(standing={}, record_event=print)
    config = config_with(default_config("sac", env="x"), {"backend": "ray"})
    view = ClusterView(arena, progress, config)
    assert view.scratch is not None
    assert view.scratch.is_dir()
    view.close()
    assert not view.scratch.exists()
    elsewhere = config_with(config, {"ray.address": "auto"})
    assert ClusterView(arena, progress, elsewhere).scratch is None


def reached(monkeypatch: pytest.MonkeyPatch, answer: Any, **knobs: Any) -> list[str]:
    def call(*_: Any) -> Any:
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(cluster_view, "call", call)
    config = config_with(default_config("sac", env="x"), {"backend": "ray"} | knobs)
    return reach_cluster(config, object())  # type: ignore[arg-type]


def test_the_cluster_is_tried_before_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    address = {"ray.address": "10.0.0.1:6379"}
    monkeypatch.delenv(SUBMITTED, raising=False)
    assert reached(monkeypatch, []) == [ALONE]
    assert reached(monkeypatch, [], **address) == [NO_NODES]
    assert "2 other nodes in the cluster: a, b" in reached(monkeypatch, ["a", "b"], **address)[0]
    with pytest.raises(UsageError, match="no connection to this cluster"):
        reached(monkeypatch, CallFailed("traceback", "ConnectionError: x"), **address)
    monkeypatch.setenv(SUBMITTED, "{}")  # a trial would cost the job its working folder
    assert reached(monkeypatch, CallFailed("", ""), **address) == []
    assert reached(monkeypatch, CallFailed("", ""), backend="local") == []
