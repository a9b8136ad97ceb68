"""The page beside a run: when there is one, and where its token is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from spreeze.run.observers import Observers
from spreeze.settings.defaults import config_with, default_config
from spreeze.store.rundir import RunDir


@pytest.mark.parametrize("knobs", [{"dashboard": False}, {"serial": True}])
def test_a_run_without_a_page_opens_no_port(tmp_path: Path, knobs: dict[str, Any]) -> None:
    observers = Observers(config_with(default_config(), knobs), RunDir(tmp_path))
    observers.close()
    assert (observers.all, observers.notes, observers.page, observers.status) == (
        [],
        [],
        "",
        {},
    )
    assert not list(tmp_path.iterdir())


def test_without_the_extra_a_run_goes_on_and_says_how_to_get_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("spreeze.dashboard.local_page.find_spec", lambda _: None)
    observers = Observers(default_config(), RunDir(tmp_path))
    observers.close()
    assert observers.all == []
    (note,) = observers.notes
    assert 'pip install "spreeze[dashboard]"' in note


def test_the_address_is_told_with_its_token_on_the_screen_only(tmp_path: Path) -> None:
    config = config_with(default_config(), {"cores": "shared"})
    observers = Observers(config, RunDir(tmp_path))
    try:
        token = (tmp_path / "dashboard.token").read_text().strip()
        assert observers.page.endswith(f"?token={token}")
        assert token not in observers.status["url"]
        assert [companion.name for companion in observers.all] == ["dashboard"]
    finally:
        observers.close()
    assert not list(tmp_path.iterdir()), "the secret goes with the run"
