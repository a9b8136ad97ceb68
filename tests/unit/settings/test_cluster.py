"""What a run on a cluster needs is checked before anything starts; a run on one machine needs no Ray."""

from __future__ import annotations

import pkgutil
import subprocess
import sys
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from typing import Any

import pytest

import spreeze
from spreeze.settings import cluster
from spreeze.settings.checks import check_config
from spreeze.settings.defaults import config_with, default_config

TOKEN = {"RAY_AUTH_TOKEN": "x"}


@pytest.fixture(autouse=True)
def ray_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "version", lambda _: "2.60.0")


def problems(environ: dict[str, str], **knobs: Any) -> str:
    config = config_with(default_config("sac", env="x"), {"backend": "ray"} | knobs)
    return "\n".join(cluster.check_cluster(config, environ))


def test_a_run_on_a_cluster_needs_its_token() -> None:
    address = {"ray.address": "10.0.0.1:6379"}
    nowhere = {"RAY_AUTH_TOKEN_PATH": "/nowhere"}
    assert not problems(TOKEN, **address)
    assert "there is no token" in problems(nowhere, **address)
    assert not problems(nowhere), "Ray on this machine gets a token that is made for it"
    assert "RAY_AUTH_MODE=disabled: whoever" in problems({"RAY_AUTH_MODE": "disabled"})


def test_a_token_may_be_in_a_file(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("x")
    file = {"RAY_AUTH_TOKEN_PATH": str(tmp_path / "token")}
    assert not problems(file, **{"ray.address": "auto"})


@pytest.mark.parametrize(
    ("found", "said"),
    [("2.58.1", "too old to be safe"), ("1.13.0", "too old"), ("2.59.0", ""), ("3.0.0", "")],
)
def test_versions_with_known_holes_are_refused(
    monkeypatch: pytest.MonkeyPatch, found: str, said: str
) -> None:
    monkeypatch.setattr(cluster, "version", lambda _: found)
    assert (said in problems(TOKEN)) if said else not problems(TOKEN)


def test_without_ray_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(_: str) -> str:
        raise PackageNotFoundError

    monkeypatch.setattr(cluster, "version", missing)
    assert 'pip install "spreeze[ray]"' in problems(TOKEN)


@pytest.mark.parametrize(
    ("here", "named", "said"),
    [
        ("10.0.0.1", None, ""),
        ("127.0.0.1", None, ""),
        ("100.64.3.2", None, ""),  # of a private network such as Tailscale's
        ("fd00::2", "fd00:0::2", ""),
        ("10.0.0.1", "10.0.0.2", "ray start --node-ip-address 10.0.0.2"),
        ("8.8.8.8", None, "add --ray.interface 8.8.8.8"),
        ("2001:4860:4860::8888", None, "that the internet routes"),
        ("8.8.8.8", "8.8.8.8", ""),
    ],
)
def test_an_address_that_the_internet_routes_must_be_named(
    here: str, named: str | None, said: str
) -> None:
    problem = cluster.interface_problem(here, named)
    assert (said in (problem or "")) if said else problem is None


@pytest.mark.parametrize(
    ("knobs", "said"),
    [
        ({"ray.interface": "10.0.0.1"}, "listens on 127.0.0.1 only"),
        ({"ray.interface": "eth0", "ray.address": "auto"}, "name an IP address of this machine"),
        ({"serial": True}, "does not work with --serial"),
        ({"seeds": "3"}, "each run takes the whole cluster"),
        ({"backend": "local", "ray.samplers": 3}, "add it, or leave them out"),
    ],
)
def test_what_contradicts_is_refused(knobs: dict[str, Any], said: str) -> None:
    assert said in problems(TOKEN, **knobs)
    config = config_with(default_config("sac", env="x"), {"backend": "ray"} | knobs)
    assert any(said in problem for problem in check_config(config))


def test_no_module_imports_ray() -> None:
    folder = str(Path(spreeze.__file__).parent)
    modules = [found.name for found in pkgutil.walk_packages([folder], "spreeze.")]
    assert "spreeze.roles.relay.ray_cluster" in modules
    code = f"""
import importlib, sys
sys.modules["ray"] = None  # importing it raises
for name in {[name for name in modules if not name.endswith(("__main__", "kernels"))]}:
    importlib.import_module(name)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
