"""How copies travel between two devices."""

from __future__ import annotations

from enum import Enum, auto

import torch


class Link(Enum):
    """The way from one device to another."""

    HOST_MEMORY = auto()
    """Both devices are the CPU."""
    BUS = auto()
    """Between the CPU and a GPU."""
    SAME_DEVICE = auto()
    """One GPU named twice: the two share it as two streams."""
    PEER_TO_PEER = auto()
    """From one GPU's memory to the other's."""
    THROUGH_HOST = auto()
    """Between GPUs that cannot access each other's memory. Slower."""


_WORDS = {
    Link.HOST_MEMORY: "in host memory",
    Link.BUS: "over the bus",
    Link.SAME_DEVICE: "two streams on one GPU",
    Link.PEER_TO_PEER: "from GPU to GPU",
    Link.THROUGH_HOST: "through host memory, because the GPUs cannot access each other's",
}


def find_link(first: torch.device, second: torch.device) -> Link:
    """How copies travel between these two devices."""
    if "cpu" in (first.type, second.type):
        return Link.HOST_MEMORY if first.type == second.type else Link.BUS
    if (first.index or 0) == (second.index or 0):
        return Link.SAME_DEVICE
    if torch.cuda.can_device_access_peer(first, second):
        return Link.PEER_TO_PEER
    return Link.THROUGH_HOST


def describe_link(first: torch.device, second: torch.device) -> str:
    """The same in words, for logs and reports."""
    return f"{first} and {second}: {_WORDS[find_link(first, second)]}"
