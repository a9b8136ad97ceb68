"""Compiled updates as lists of launches: which arguments are pointers, where they point, and a run on a GPU."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import pytest
import torch

from spreeze.learning.compiled import recording
from spreeze.learning.compiled.launches import ARENA, Launches
from spreeze.learning.compiled.recording import ALIGNMENT, save, watch_kernels

BEGIN = 0x7F00_0000_0000


class Fake:
    """A tensor's address and size."""

    def __init__(self, address: int, size: int) -> None:
        self.nbytes = size
        self._address = address

    def data_ptr(self) -> int:
        return self._address


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Input 0 claims a gigabyte though input 1, the arena and other memory begin inside it."""

    def segment(address: int, pool: int, *blocks: int) -> dict[str, Any]:
        return {
            "address": address,
            "total_size": sum(blocks),
            "segment_pool_id": (0, pool),
            "blocks": [{"size": size} for size in blocks],
        }

    segments = [
        segment(BEGIN - 4096, 1, 1000),
        segment(BEGIN + 8192, 1, 1024, 1024),
        segment(BEGIN - 512, 0, 512, 256, 512, 1024),
    ]
    monkeypatch.setattr(torch.cuda, "memory_snapshot", lambda: segments)
    return recording._CaptureMemory([Fake(BEGIN, 1 << 30), Fake(BEGIN + 256, 64)], (0, 1))  # type: ignore[list-item]


def pointer(address: int) -> bytes:
    return address.to_bytes(8, "little")


def test_a_pointer_belongs_to_an_input_or_to_the_arena(memory: Any) -> None:
    assert memory.relocatable(pointer(BEGIN + 8)) == (0, 8)
    assert memory.relocatable(pointer(BEGIN + 256)) == (1, 0)
    assert memory.relocatable(pointer(BEGIN - 4096)) == (ARENA, 0)
    assert memory.relocatable(pointer(BEGIN + 8200)) == (ARENA, 2 * ALIGNMENT + 8)
    assert memory.arena_bytes == 2 * ALIGNMENT + 2048


def test_counts_doubles_and_null_stay_as_they_are(memory: Any) -> None:
    for raw in (bytes(8), pointer(1_000_000), struct.pack("<d", 0.5), struct.pack("<i", 7)):
        assert bytes.fromhex(memory.relocatable(raw)) == raw


def test_a_pointer_to_other_memory_is_refused(memory: Any) -> None:
    """In the next process such a pointer could point anywhere, for example into the rows of a replay."""
    for address in (BEGIN - 512, BEGIN + 256 + 64, BEGIN + 1000, BEGIN + 1_000_000):
        with pytest.raises(RuntimeError, match="neither in an input nor allocated by the update"):
            memory.relocatable(pointer(address))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.filterwarnings(
    "ignore:TensorFloat32"
)  # the compiler's advice; here numbers are compared
def test_kernels_and_matrix_products_run_from_their_list(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch._inductor
    from torch.fx.experimental.proxy_tensor import make_fx

    def function(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, ...]:
        mixed = torch.softmax(a * 2 + b, -1)
        product = torch.addmm(b[0], mixed, torch.mm(a.T, b))
        pairs = torch.bmm(product.view(3, 100, 70), b.view(3, 70, 100)[:, :, :70])
        return (mixed + torch.tanh(pairs.reshape(300, 70)), mixed.sum())

    monkeypatch.setattr("torch.hub.tqdm.monitor_interval", 0, raising=False)  # it starts a thread
    device = torch.device("cuda")
    inputs = [torch.randn(300, 70, device=device) for _ in range(2)]
    options = {"use_static_cuda_launcher": False, "compile_threads": 1}  # else it leaves processes
    with watch_kernels() as binaries, torch._inductor.config.patch(options), torch.no_grad():
        made = torch._inductor.standalone_compile(
            make_fx(function)(*inputs), inputs, dynamic_shapes="from_example_inputs"
        )
        save(made, inputs, binaries, tmp_path / "list")
    stored = Launches(tmp_path / "list", device)
    for _ in range(3):  # each result is an input of the next call
        torch.testing.assert_close(tuple(stored(*inputs)), tuple(made(*inputs)), rtol=0, atol=0)
        inputs = [stored(*inputs)[0], inputs[0]]
