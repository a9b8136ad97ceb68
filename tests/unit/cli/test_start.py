"""The start of `spreeze train`: fork servers come first, and go with the command."""

from __future__ import annotations

import sys

import pytest

from spreeze import cli
from spreeze.run.processes.servers import ForkServers, Server


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[Server]:
    """The servers that were started, without modules to import."""
    servers: list[Server] = []

    def start() -> ForkServers:
        servers.extend((Server(()), Server(())))
        return ForkServers(*servers)

    monkeypatch.setattr(ForkServers, "start", start)
    return servers


@pytest.mark.parametrize(
    "arguments",
    [
        ["Pendulum-v1", "--no-such-flag"],
        ["Pendulum-v1", "--learner.batch-size", "many"],
        ["Pendulum-v1", "--algo", "no-such-algorithm"],
        ["Pendulum-v1", "--time", "soon"],
    ],
)
def test_wrong_flags_end_the_servers(
    arguments: list[str], started: list[Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["spreeze", "train", *arguments])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == cli.USAGE
    assert len(started) == 2
    assert all(server.process.returncode is not None for server in started)


@pytest.mark.parametrize("flag", ["--help", "--serial"])
def test_no_servers_where_no_process_is_needed(
    flag: str, started: list[Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["spreeze", "train", flag, "--no-such-flag"])
    with pytest.raises(SystemExit):
        cli.main()
    assert started == []


def test_closing_servers_twice_is_harmless() -> None:
    servers = ForkServers(*(Server(()) for _ in range(2)))
    servers.close()
    servers.close()
    assert all(server.process.returncode < 0 for server in servers.all)


def test_one_server_may_serve_both_kinds() -> None:
    server = Server(())
    servers = ForkServers(server, server)
    assert servers.all == [server]
    assert servers.get(with_torch=True) is servers.get(with_torch=False) is server
    servers.close()
