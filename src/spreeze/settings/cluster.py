"""What a run on a Ray cluster needs, checked before anything starts. Imports no Ray."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib.metadata import PackageNotFoundError, version
from ipaddress import ip_address
from pathlib import Path

from spreeze.settings.config import Config
from spreeze.settings.ray_section import RayConfig

OLDEST = (2, 59)
"""Older versions have known holes, or do not ask for a token unless they are told to."""
TOKEN_FILE = Path(".ray/auth_token")
AUTH_MODE, AUTH_TOKEN, AUTH_TOKEN_PATH = "RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"
CLUSTERS = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"
"""With 0, a Ray that is started listens on the loopback only, whatever the system."""


def check_cluster(config: Config, environ: Mapping[str, str]) -> Iterator[str]:
    """Everything that is wrong with the knobs of a cluster."""
    if config.backend == "local":
        if config.ray != RayConfig() and config.resume is None:
            yield "--ray settings are for --backend ray: add it, or leave them out."
        return
    if config.serial:
        yield "--backend ray needs processes, so it does not work with --serial."
    if config.seeds is not None:
        yield f"--seeds {config.seeds} with --backend ray: each run takes the whole cluster. Train the seeds one after the other with --seed."
    if (problem := ray_problem(environ)) is not None:
        yield problem
    elif config.ray.address is not None and not _has_token(environ):
        yield (
            f"--ray.address {config.ray.address}: there is no token for this cluster. On its head: "
            "ray get-auth-token --generate; then copy ~/.ray/auth_token to each machine."
        )
    if config.ray.interface is not None:
        yield from _check_interface(config.ray.interface, config.ray.address)


def _check_interface(interface: str, address: str | None) -> Iterator[str]:
    if address is None:
        yield f"--ray.interface {interface} is for a cluster: add --ray.address. A Ray that the run starts itself listens on 127.0.0.1 only."
    try:
        ip_address(interface)
    except ValueError:
        yield f"--ray.interface {interface}: name an IP address of this machine, such as 10.0.0.1."


def interface_problem(here: str, interface: str | None) -> str | None:
    """Why Ray may not be used at this address of this machine; None if it may. `interface`: the one that was named."""
    if interface is not None:
        if ip_address(here) == ip_address(interface):
            return None
        return f"--ray.interface {interface}: Ray is at {here} on this machine. Start it with: ray start --node-ip-address {interface} ..."
    if not ip_address(here).is_global:
        return None
    return (
        f"Ray is at {here} on this machine, an address that the internet routes. Start it at one of a private network, "
        f"with ray start --node-ip-address; or, if a firewall protects its ports, add --ray.interface {here}."
    )


def ray_problem(environ: Mapping[str, str]) -> str | None:
    """Why Ray cannot be used on this machine; None if it can."""
    try:
        found = version("ray")
    except PackageNotFoundError:
        return '--backend ray needs a missing package: pip install "spreeze[ray]"'
    oldest = ".".join(map(str, OLDEST))
    if tuple(map(int, found.split(".")[:2])) < OLDEST:
        return f'Ray {found} is too old to be safe: pip install "ray>={oldest}", on every machine.'
    if (mode := environ.get(AUTH_MODE, "token")) != "token":
        return f"{AUTH_MODE}={mode}: whoever reaches such a cluster can run code on it. Use {AUTH_MODE}=token."
    return None


def _has_token(environ: Mapping[str, str]) -> bool:
    file = environ.get(AUTH_TOKEN_PATH)
    path = Path(file) if file else Path.home() / TOKEN_FILE
    return bool(environ.get(AUTH_TOKEN)) or path.is_file()
