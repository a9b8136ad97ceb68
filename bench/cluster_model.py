"""Where one learner saturates: a formula, and a discrete-event simulation that checks it.

    python bench/cluster_model.py            print the table of saturation
    python bench/cluster_model.py --write    write the tables of docs/scaling.md

Both take the constants that `spreeze bench cluster` has measured. The formula looks at each part alone and takes the
slowest; the simulation plays every call, block and policy, in order, through the same parts.
"""

from __future__ import annotations

import heapq
import json
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from spreeze.roles.relay.fleet import IN_FLIGHT
from spreeze.run.outpost.site import FLUSH_S
from spreeze.wires.blocks import MOST_BYTES, USUAL_BYTES

ROOT = Path(__file__).parent.parent
RESULT = ROOT / "bench" / "results" / "cluster-2cores.json"
PAGE = ROOT / "docs" / "scaling.md"
BLOCK = re.compile(r"(<!-- (constants|nodes|saturation) -->\n).*?(<!-- end -->)", re.DOTALL)
CORES, GBITS = (64, 256, 1024, 10_000), (1, 10, 100)
CORES_PER_NODE = 64
STEPS_HZ = 2_000.0
"""Steps per second of one sampler core: MuJoCo with some contacts."""
POLICIES_HZ = 20.0
"""The most policies per second that a node takes; see `relay.PUT_EVERY_S`."""
LANE_ROWS = 65_536


@dataclass(frozen=True)
class Constants:
    """What was measured."""

    row_bytes: float
    policy_bytes: float
    call_s: float
    """The relay's time for a call and its answer, without rows."""
    row_s: float
    """The relay's time for one row: fetched, checked, written into the lane."""

    @staticmethod
    def measured(result: dict[str, Any]) -> Constants:
        """From the JSON of `spreeze bench cluster`."""
        num = result["block_rows"]
        call_s, block_s = result["call_ms"] / 1000, result["block_ms"] / 1000
        pack_s = result["pack_row_ns"] * 1e-9  # on the node
        write_s = (result["check_row_ns"] + result["write_row_ns"]) * 1e-9
        row_s = max(block_s - call_s - num * pack_s, 0.0) / num + write_s
        return Constants(result["row_bytes"], result["policy_bytes"], call_s, row_s)


@dataclass(frozen=True)
class Cluster:
    """The machines beside the learner's."""

    cores: int
    gbit: float

    @property
    def nodes(self) -> int:
        """How many."""
        return -(-self.cores // CORES_PER_NODE)

    @property
    def bytes_hz(self) -> float:
        """What the learner's network takes in a second, in each direction."""
        return self.gbit * 1e9 / 8


def formula(cluster: Cluster, c: Constants) -> tuple[float, str]:
    """Rows per second that reach the learner, and what limits them."""
    nodes = cluster.nodes
    supply = cluster.cores * STEPS_HZ
    # A node makes f calls a second: a block leaves when it has its usual size, or after FLUSH_S.
    usual = USUAL_BYTES / c.row_bytes
    calls = max(1 / FLUSH_S, supply / nodes / usual)
    # Each call takes a policy along, if there is a new one.
    policies = min(calls, POLICIES_HZ)
    down = cluster.bytes_hz / c.row_bytes
    up = cluster.bytes_hz / (nodes * policies * c.policy_bytes)
    # The relay: nodes * calls * call_s + rows * row_s <= 1. When it is the limit, blocks grow up to their most.
    largest = MOST_BYTES / c.row_bytes
    relay = 1 / (c.row_s + c.call_s / largest)
    parts = {"samplers": supply, "network": down, "relay": relay}
    name = min(parts, key=lambda part: parts[part])
    rows = parts[name]
    if up < 1:  # policies do not fit beside each other: calls wait for them
        per_call = nodes * c.policy_bytes / cluster.bytes_hz
        most = nodes * largest * IN_FLIGHT / max(per_call * IN_FLIGHT, FLUSH_S)
        if most < rows:
            rows, name = most, "policies"
    return rows, name


class Part:
    """Something that does one thing after another: a direction of the network, or the relay."""

    def __init__(self) -> None:
        """Free from the start."""
        self.free_s = 0.0

    def do(self, now_s: float, takes_s: float) -> float:
        """When it has done this, too."""
        self.free_s = max(self.free_s, now_s) + takes_s
        return self.free_s


def simulate(cluster: Cluster, c: Constants, seconds: float = 20.0) -> float:
    """Rows per second that reach the learner, call by call."""
    up, down, relay = Part(), Part(), Part()
    rate = cluster.cores * STEPS_HZ / cluster.nodes
    usual, largest = int(USUAL_BYTES / c.row_bytes), int(MOST_BYTES / c.row_bytes)
    room = LANE_ROWS * CORES_PER_NODE
    drained_s = [0.0] * cluster.nodes
    rest = [0.0] * cluster.nodes
    free_s = [0.0] * cluster.nodes
    sent_policy_s = [-1.0] * cluster.nodes
    events: list[tuple[float, int, int, int]] = []
    number, rows, warm = 0, 0.0, seconds / 4

    def ask(node: int, now_s: float) -> None:
        """The relay makes a call; it reaches the node with a policy, if there is a new one."""
        nonlocal number
        arrives = now_s
        if now_s - sent_policy_s[node] >= 1 / POLICIES_HZ:
            sent_policy_s[node] = now_s
            arrives = up.do(now_s, c.policy_bytes / cluster.bytes_hz)
        number += 1
        heapq.heappush(events, (max(arrives, free_s[node]), number, node, -1))

    def answer(node: int, now_s: float) -> None:
        """The node waits until it has a block, and sends it."""
        nonlocal number
        begin = max(now_s, free_s[node])
        there = min(rest[node] + (begin - drained_s[node]) * rate, room)
        leaves = begin if there >= usual else min(begin + FLUSH_S, begin + (usual - there) / rate)
        there = min(rest[node] + (leaves - drained_s[node]) * rate, room)
        sent = min(int(there), largest)
        rest[node], drained_s[node], free_s[node] = there - sent, leaves, leaves
        number += 1
        heapq.heappush(events, (leaves, number, node, sent))

    for node in range(cluster.nodes):
        for _ in range(IN_FLIGHT):
            ask(node, node * FLUSH_S / cluster.nodes)
    while events and events[0][0] < seconds:
        now_s, _, node, sent = heapq.heappop(events)
        if sent < 0:
            answer(node, now_s)
            continue
        arrived = down.do(now_s, sent * c.row_bytes / cluster.bytes_hz)
        done = relay.do(arrived, c.call_s + sent * c.row_s)
        if warm < done <= seconds:
            rows += sent
        ask(node, done)
    return rows / (seconds - warm)


Rows = list[list[str]]


def saturation(c: Constants) -> Rows:
    """How many rows reach the learner, by sampler cores and bandwidth."""
    rows = [["sampler cores", "nodes", "network", "rows/s", "limit", "simulated rows/s"]]
    for cores in CORES:
        for gbit in GBITS:
            cluster = Cluster(cores, gbit)
            found, limit = formula(cluster, c)
            simulated = simulate(cluster, c)
            cells = [f"{cores:,}", f"{cluster.nodes:,}", f"{gbit} Gbit/s", f"{found:,.0f}"]
            rows.append([*cells, limit, f"{simulated:,.0f}"])
    return rows


def constants(result: dict[str, Any], c: Constants) -> Rows:
    """What was measured, and what the formula takes from it."""
    block = f"block of {result['block_rows']:,} rows"
    return [
        ["measured", "value"],
        ["rows through the object store, two calls in flight", f"{result['rows_hz']:,.0f} rows/s"],
        ["rows through a lane, beside it", f"{result['lane_rows_hz']:,.0f} rows/s"],
        ["an empty call and its answer: `call_s`", f"{result['call_ms']:.2f} ms"],
        [f"a call that brings a {block}", f"{result['block_ms']:.2f} ms"],
        [f"a policy of {result['policy_bytes']:,} bytes", f"{result['policy_ms']:.2f} ms"],
        ["packing a row on its node", f"{result['pack_row_ns']:.0f} ns"],
        ["checking a row on arrival", f"{result['check_row_ns']:.0f} ns"],
        ["writing a row into the lane", f"{result['write_row_ns']:.0f} ns"],
        ["the relay's time for a row: `row_s`", f"{1e9 * c.row_s:.0f} ns"],
    ]


def nodes(result: dict[str, Any]) -> Rows:
    """Samplers on several nodes."""
    rows = [["nodes", "steps/s", "at most", "per node", "relay"]]
    for found in result["scaling"]:
        each = found["sample_hz"] / found["nodes"]
        cells = [str(found["nodes"]), f"{found['sample_hz']:,.0f}", f"{found['most_hz']:,.0f}"]
        rows.append([*cells, f"{each:,.0f}", f"{100 * found['relay_share']:.0f} % of a core"])
    return rows


def rewritten(text: str) -> str:
    """The page with current tables."""
    result = json.loads(RESULT.read_text())
    c = Constants.measured(result)
    known = {"constants": constants(result, c), "nodes": nodes(result), "saturation": saturation(c)}

    def block(match: re.Match[str]) -> str:
        header, *body = known[match[2]]
        lines = [header, ["---:"] * len(header), *body]
        return match[1] + "".join(f"| {' | '.join(cells)} |\n" for cells in lines) + match[3]

    return BLOCK.sub(block, text)


if __name__ == "__main__":
    if "--write" in sys.argv[1:]:
        PAGE.write_text(rewritten(PAGE.read_text()))
    else:
        for cells in saturation(Constants.measured(json.loads(RESULT.read_text()))):
            print("  ".join(f"{cell:>16}" for cell in cells))
