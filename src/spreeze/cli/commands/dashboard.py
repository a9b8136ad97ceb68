"""`spreeze dashboard`: serves the page of a run, or of all runs in a folder."""

from __future__ import annotations

import ipaddress
import socket
import sys
from dataclasses import dataclass
from pathlib import Path

import tyro

from spreeze.dashboard.access import LOCAL_NAMES, Access
from spreeze.dashboard.local_page import can_serve
from spreeze.dashboard.token import TokenFile, new_token
from spreeze.envs.suites import advice
from spreeze.errors import UsageError
from spreeze.settings.arguments import read_arguments
from spreeze.store.rundir import find_run


@dataclass(frozen=True, kw_only=True)
class Arguments:
    """Show runs in the browser: one or all runs of a folder, live or finished."""

    run: tyro.conf.Positional[str | None] = None
    """A run (path, or name in the runs folder) or a folder of runs. Default: the runs folder."""
    runs: str = "runs"
    """The runs folder."""
    port: int = 0
    """Port to listen on. Default: a free one."""
    host: str = "127.0.0.1"
    """Address to listen on. Any address but 127.0.0.1 opens the page to the network."""
    allow_host: tuple[str, ...] = ()
    """Host names that browsers may use if --host opens the page to the network."""
    token: bool = True
    """Require the secret token that is part of the address."""


def main(arguments: list[str], _started_s: float) -> int:
    """Serve until Ctrl-C."""
    args = read_arguments(Arguments, arguments, "dashboard")
    if not can_serve():
        raise UsageError([f"the page needs packages that are not installed. {advice('dashboard')}"])
    check(args)
    folder, first = _folder_and_run(args)
    try:
        family = socket.AF_INET6 if ":" in args.host else socket.AF_INET
        listening = socket.create_server((args.host, args.port), family=family)
    except OSError as error:
        raise UsageError(
            [f"--host {args.host} --port {args.port}: cannot listen there ({error.strerror})."]
        ) from None
    from spreeze.dashboard.app import Page
    from spreeze.dashboard.server import serve

    port = listening.getsockname()[1]
    access = Access(port, new_token() if args.token else None, hosts(args))
    shown = f"[{args.host}]" if ":" in args.host else args.host
    _print_address(f"http://{shown}:{port}/", access.token)
    if not is_local(args.host):
        print(
            "Note:  anyone on the network who has this address can see the page. It is not encrypted.",
            file=sys.stderr,
        )
    print("Press Ctrl-C to stop the page. Training goes on.", flush=True)
    serve(Page(folder, first), access, listening)
    return 0


def _print_address(address: str, token: str | None) -> None:
    """Print the address of the page. Its token goes to a terminal only: a file may be a log that others read."""
    if token is None:
        print(f"Page:  {address}", flush=True)
    elif sys.stdout.isatty():
        print(f"Page:  {address}?token={token}", flush=True)
    else:
        print(f"Page:  {address}?token=...", flush=True)
        print(f"Token: in {TokenFile(token).path} until this command ends", flush=True)


def check(args: Arguments) -> None:
    """Refuse a bad address, and an open page without a token."""
    problems = []
    if not 0 <= args.port <= 65_535:
        problems.append(f"--port {args.port}: must be a whole number from 0 to 65535.")
    try:
        ipaddress.ip_address(args.host)
    except ValueError:
        problems.append(f"--host {args.host}: must be an address such as 127.0.0.1 or 0.0.0.0.")
    else:
        if not is_local(args.host) and not args.token:
            problems.append(
                f"--host {args.host} opens the page to the network, which needs the token: leave out --no-token."
            )
    if problems:
        raise UsageError(problems)


def is_local(host: str) -> bool:
    """Whether only this machine can reach the address."""
    return ipaddress.ip_address(host).is_loopback


def hosts(args: Arguments) -> tuple[str, ...]:
    """Host names that requests may use. Any other name may be a DNS entry that points here (rebinding)."""
    names = {*LOCAL_NAMES, *(name.lower() for name in args.allow_host)}
    if not is_local(args.host):
        import psutil

        every = [a.address for found in psutil.net_if_addrs().values() for a in found]
        own = every if ipaddress.ip_address(args.host).is_unspecified else [args.host]
        names |= {f"[{address}]" if ":" in address else address for address in own}
    return tuple(sorted(names))


def _folder_and_run(args: Arguments) -> tuple[Path, str | None]:
    """The folder to show, and the run to show first."""
    path = Path(args.run if args.run is not None else args.runs)
    if path.is_dir() and not (path / "config.json").exists():
        return path, None
    if args.run is None:
        raise UsageError(
            [f"there is no folder {path}/. Name one, or train first: spreeze train Pendulum-v1"]
        )
    run = find_run(args.run, Path(args.runs)).path.resolve()
    return run.parent, run.name
