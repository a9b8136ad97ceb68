"""`spreeze dashboard`: the live page for a run, or for all runs of a folder."""

from __future__ import annotations

import ipaddress
import socket
import sys
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import tyro

from spreeze.dashboard.access import LOCAL_NAMES, Access, new_token
from spreeze.envs.suites import advice
from spreeze.errors import UsageError
from spreeze.store.rundir import find_run


@dataclass(frozen=True, kw_only=True)
class Arguments:
    """Show a run, or all runs of a folder, on a page in the browser: live, or after the end."""

    run: tyro.conf.Positional[str | None] = None
    """A run by path or by name under the runs folder, or a folder of runs. Default: the runs folder."""
    runs: str = "runs"
    """Folder of the runs."""
    port: int = 0
    """Port to listen on. Default: a free one."""
    host: str = "127.0.0.1"
    """Address to listen on. Any other than this machine's own lets the network look."""
    allow_host: tuple[str, ...] = ()
    """Names by which browsers may call this machine, where --host opens the page to the network."""
    token: bool = True
    """Ask for the secret that is part of the printed address."""


def main(arguments: list[str], _started_s: float) -> int:
    """Serve until Ctrl-C."""
    args = tyro.cli(Arguments, args=arguments, prog="spreeze dashboard")
    for module in ("starlette", "uvicorn"):
        if find_spec(module) is None:
            raise UsageError([f"the page needs packages that are missing. {advice('dashboard')}"])
    check(args)
    folder, first = _what(args)
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
    secret = f"?token={access.token}" if access.token else ""
    print(f"Page:  http://{shown}:{port}/{secret}", flush=True)
    if not is_local(args.host):
        print(
            "Note:  whoever on the network has this address can look; it is sent without encryption.",
            file=sys.stderr,
        )
    print("Ctrl-C ends it; training is not touched.", flush=True)
    serve(Page(folder, first), access, listening)
    return 0


def check(args: Arguments) -> None:
    """Refuse what would open the page to strangers by mistake."""
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
                f"--host {args.host} lets the network look, so the token stays: leave out --no-token."
            )
    if problems:
        raise UsageError(problems)


def is_local(host: str) -> bool:
    """Whether only this machine can reach that address."""
    return ipaddress.ip_address(host).is_loopback


def hosts(args: Arguments) -> tuple[str, ...]:
    """What a browser may call this machine; a stranger's name that leads here is not among them."""
    names = {*LOCAL_NAMES, *(name.lower() for name in args.allow_host)}
    if not is_local(args.host):
        import psutil

        every = [a.address for found in psutil.net_if_addrs().values() for a in found]
        own = every if ipaddress.ip_address(args.host).is_unspecified else [args.host]
        names |= {f"[{address}]" if ":" in address else address for address in own}
    return tuple(sorted(names))


def _what(args: Arguments) -> tuple[Path, str | None]:
    """The folder to show, and the run in it to show first."""
    path = Path(args.run if args.run is not None else args.runs)
    if path.is_dir() and not (path / "config.json").exists():
        return path, None
    if args.run is None:
        raise UsageError(
            [f"there is no folder {path}/. Train first: spreeze train Pendulum-v1; or name one."]
        )
    run = find_run(args.run, Path(args.runs)).path.resolve()
    return run.parent, run.name
