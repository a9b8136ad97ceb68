"""Makes the fused form of an update and stores it in a file, from which it loads within milliseconds."""

from __future__ import annotations

import json
import tempfile
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from spreeze.learning.fusion import cpu, gpu
from spreeze.learning.fusion.program import Listing, build_program, listing_of
from spreeze.learning.fusion.record import NotRecordable, record
from spreeze.learning.fusion.running import CpuKernels, FusedUpdate, GpuKernels
from spreeze.learning.step import StepFunction

LISTING, CONSTANT, LIBRARY = "fused.json", "constant-{}", "kernels.so"


def fuse(
    step: StepFunction, inputs: Sequence[Tensor], device: torch.device, to: Path, threads: int = 1
) -> None:
    """Store the fused form of `step` for inputs of these shapes; raises RuntimeError if there is none.

    `threads`: how many threads of a CPU its kernels use.
    """
    try:
        recording = record(step, inputs)
        on_gpu = device.type == "cuda"
        program = build_program(recording, gpu.GpuLoops() if on_gpu else cpu.CpuLoops(threads))
        binaries, starts = (
            gpu.build(program, device) if on_gpu else cpu.build(program, LIBRARY, threads)
        )
        listing = listing_of(program, starts)
    except NotRecordable as error:
        raise RuntimeError(f"the update cannot be fused: {error}") from None
    listing["constants"] = [_described(tensor) for tensor in program.constants]
    listing["binaries"] = {file: names for file, (names, _) in binaries.items()}
    with zipfile.ZipFile(to, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        archive.writestr(LISTING, json.dumps(listing))
        for file, (_, binary) in binaries.items():
            archive.writestr(file, binary)
        for i, tensor in enumerate(program.constants):
            content = (
                tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes()
            )
            archive.writestr(CONSTANT.format(i), content)


def _described(tensor: Tensor) -> Listing:
    return {"shape": list(tensor.shape), "dtype": str(tensor.dtype).removeprefix("torch.")}


def is_fused(path: Path) -> bool:
    """Whether a file holds a fused update."""
    if not zipfile.is_zipfile(path):
        return False
    with zipfile.ZipFile(path) as archive:
        return LISTING in archive.namelist()


def load_fused(path: Path, device: torch.device) -> FusedUpdate:
    """The fused update in a file."""
    with zipfile.ZipFile(path) as archive:
        listing = json.loads(archive.read(LISTING))
        constants = [
            _constant(described, archive.read(CONSTANT.format(i)), device)
            for i, described in enumerate(listing["constants"])
        ]
        binaries = [(names, archive.read(file)) for file, names in listing["binaries"].items()]
    if device.type == "cuda":
        return FusedUpdate(listing, constants, device, GpuKernels(binaries, device))
    with tempfile.TemporaryDirectory() as folder:
        library = Path(folder) / LIBRARY
        library.write_bytes(binaries[0][1])
        return FusedUpdate(listing, constants, device, CpuKernels(library))


def _constant(described: Listing, content: bytes, device: torch.device) -> Tensor:
    dtype: Any = getattr(torch, described["dtype"])
    flat = torch.frombuffer(bytearray(content), dtype=dtype)
    return flat.view(described["shape"]).to(device)
