"""Ray as the cluster: it starts outposts on its nodes and carries what they say.

Ray sends pickles, and whoever may talk to it can run code. So every process of it demands a token; nothing starts
without one, and there is no dashboard. A Ray that is started here listens on the loopback only.
"""

from __future__ import annotations

import os
import secrets
from importlib import import_module
from ipaddress import ip_address
from pathlib import Path
from typing import Any

from spreeze.errors import UsageError
from spreeze.machine.scratch import Scratch
from spreeze.roles.relay.fleet import BlockLost, Lost, Node, Unreadable
from spreeze.settings.cluster import AUTH_MODE, AUTH_TOKEN, CLUSTERS, interface_problem
from spreeze.settings.ray_section import RayConfig

OUTPOST = "spreeze.run.outpost", "Outpost"
"""What runs on a node. Named, because it starts processes, which roles do not know about."""
RAY_FOLDER = "spreeze-ray-"
"""How the folder of a Ray that is started begins: short, because the names of sockets there may have 107 characters."""
CPUS_ALONE = 1
"""CPUs of a Ray that is started for this run on this machine."""
STORE_BYTES = 256 << 20
"""Its object store."""
YOUR_CODE = (
    "Your own code must be the same on each node: an installed package, or a file at the same path"
)


def try_cluster(config: RayConfig) -> list[str]:
    """Connect, look at the nodes, and leave again; UsageError if that does not work. Returns their names."""
    cluster = RayCluster(config)
    try:
        return [node.name for node in cluster.nodes().values()]
    finally:
        cluster.close()


class RayCluster:
    """A connection to a Ray cluster; see `fleet.Cluster`."""

    def __init__(
        self, config: RayConfig, outpost: type | None = None, folder: Path | None = None
    ) -> None:
        """Connect to the cluster, or start one on this machine if the config has no address.

        `outpost`: the class of what runs on nodes, if it is not the usual one. `folder`: where a Ray that is started
        keeps its files, if the caller removes them.
        """
        self._scratch: Scratch | None = None
        os.environ[AUTH_MODE] = "token"
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        quiet: dict[str, Any] = {
            "log_to_driver": False,
            "logging_level": "error",
            "configure_logging": False,
        }
        if config.address is None:
            os.environ.setdefault(AUTH_TOKEN, secrets.token_hex(32))  # before Ray is imported
            os.environ[CLUSTERS] = "0"
            import ray

            if folder is None:
                self._scratch = Scratch(RAY_FOLDER)
                folder = self._scratch.path
            ray.init(
                address="local",
                num_cpus=config.samplers or CPUS_ALONE,
                num_gpus=0,
                object_store_memory=STORE_BYTES,
                include_dashboard=False,
                _temp_dir=str(folder),
                **quiet,
            )
        else:
            import ray

            try:
                ray.init(address=config.address, **quiet)
            except (ConnectionError, RuntimeError, ValueError, ray.exceptions.RayError) as error:
                first, _, _ = str(error).strip().partition("\n")
                raise UsageError(
                    [f"--ray.address {config.address}: no connection to this cluster. {first}"]
                ) from None
        self._ray: Any = ray
        self.address: str = self._ray.util.get_node_ip_address()
        """Of this machine in the cluster."""
        if (problem := self._exposed(config)) is not None:
            self.close()
            raise UsageError([problem])
        self._own = ray.get_runtime_context().get_node_id()
        self._alone = config.address is None
        self._actor: Any = ray.remote(outpost or getattr(import_module(OUTPOST[0]), OUTPOST[1]))

    def _exposed(self, config: RayConfig) -> str | None:
        """Why this machine's address in the cluster is not as it must be."""
        if config.address is not None:
            return interface_problem(self.address, config.interface)
        # Another version of Ray may not know the variable.
        if not ip_address(self.address).is_loopback:
            return f"Ray was told to stay on the loopback, and started at {self.address}: it was stopped"
        return None

    def nodes(self) -> dict[str, Node]:
        """All nodes but this one; if Ray was started for this run, this one."""
        found = {}
        for facts in self._ray.nodes():
            cpus, id = int(facts["Resources"].get("CPU", 0)), facts["NodeID"]
            if facts["Alive"] and cpus > 0 and (self._alone or id != self._own):
                found[id] = Node(id, f"{facts['NodeManagerHostname']} ({facts['NodeName']})", cpus)
        return found

    def start(self, node: Node, *arguments: Any) -> Any:
        """Have an outpost started on a node; it gets all CPUs there."""
        strategy = self._ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy
        return self._actor.options(
            num_cpus=node.cpus,
            max_restarts=0,
            max_task_retries=0,
            scheduling_strategy=strategy(node.id, soft=False),
        ).remote(*arguments)

    def call(self, outpost: Any, method: str, *arguments: Any) -> Any:
        """Call a method; returns the reference of its answer."""
        return getattr(outpost, method).remote(*arguments)

    def answered(self, tickets: list[Any], timeout_s: float) -> list[Any]:
        """Those of the calls that have an answer."""
        ready, _ = self._ray.wait(tickets, num_returns=len(tickets), timeout=0)
        if not ready:
            ready, _ = self._ray.wait(tickets, num_returns=1, timeout=timeout_s)
        return list(ready)

    def answer(self, ticket: Any) -> Any:
        """The answer to a call; Lost, Unreadable or BlockLost without one."""
        errors = self._ray.exceptions
        try:
            return self._ray.get(ticket)
        except errors.ObjectLostError:
            raise BlockLost from None
        except errors.RayTaskError as error:
            why = getattr(error.cause, "client_exc", None)  # Ray could not unpickle the call there
            if isinstance(why, ImportError | AttributeError):
                raise Unreadable(f"{why}. {YOUR_CODE}") from None
            first, _, _ = str(error.cause).partition("\n")
            raise Lost(f"it raised {type(error.cause).__name__}: {first}") from None
        except errors.ActorUnavailableError:
            raise Lost("it cannot be reached") from None
        except errors.RayActorError:
            raise Lost("it has died") from None
        except errors.RayError as error:
            raise Lost(" ".join(str(error).split())[:300]) from None

    def put(self, value: Any) -> Any:
        """Store a value once; Ray copies it to each node that needs it, once."""
        return self._ray.put(value)

    def end(self, outpost: Any) -> None:
        """Kill an outpost; its processes end with it."""
        self._ray.kill(outpost)

    def close(self) -> None:
        """Disconnect; outposts end with the connection, and so does a Ray that was started here."""
        self._ray.shutdown()
        if self._scratch is not None:
            self._scratch.remove()
