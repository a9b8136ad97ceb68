"""Tensors in safetensors files, read with every length checked before it is believed.

The format: eight bytes with the length of a header, the header as JSON (name, type, shape and place of
each tensor), then the tensors' bytes without gaps. Only this module reads it.
"""

from __future__ import annotations

import hashlib
import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, TypeGuard

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save as to_safetensors

from spreeze.errors import DamagedFile
from spreeze.store.files import open_inside, parse_json

Tensors = Mapping[str, NDArray[Any]]
Shape = tuple[int, ...]

MAX_HEADER_BYTES, MAX_TENSORS, MAX_DIMENSIONS, MAX_NAME = 1 << 20, 4096, 8, 200
MAX_TENSOR_BYTES = 8 << 30
"""The most bytes of one file, unless the reader knows better."""
PIECE_BYTES = 1 << 22
DTYPES: dict[str, np.dtype[Any]] = {
    "U8": np.dtype(np.uint8),
    "I8": np.dtype(np.int8),
    "U16": np.dtype("<u2"),
    "I16": np.dtype("<i2"),
    "U32": np.dtype("<u4"),
    "I32": np.dtype("<i4"),
    "U64": np.dtype("<u8"),
    "I64": np.dtype("<i8"),
    "F16": np.dtype("<f2"),
    "F32": np.dtype("<f4"),
    "F64": np.dtype("<f8"),
}
"""The types that a file may hold, by their safetensors names."""


@dataclass(frozen=True)
class TensorPlace:
    """One tensor of a file, as its header describes it."""

    name: str
    dtype: str
    shape: Shape
    start: int
    """Where its bytes begin, counted from the end of the header."""

    @property
    def num_bytes(self) -> int:
        """Its length. Python's integers do not overflow."""
        size = DTYPES[self.dtype].itemsize
        for length in self.shape:
            size *= length
        return size

    def describe(self) -> dict[str, Any]:
        """Type and shape, as a checkpoint's manifest lists them."""
        return {"dtype": self.dtype, "shape": list(self.shape)}


@dataclass(frozen=True)
class TensorFile:
    """A file whose tensors have been read."""

    tensors: dict[str, NDArray[Any]]
    """Empty if the file was only checked."""
    places: dict[str, TensorPlace]
    size: int
    sha256: str


def encode_tensors(tensors: Tensors) -> bytes:
    """The bytes of a safetensors file."""
    return to_safetensors({name: np.array(array, order="C") for name, array in tensors.items()})


def parse_header(content: bytes, data_bytes: int, name: str) -> dict[str, TensorPlace]:
    """The tensors that a header describes, in the order of their bytes; DamagedFile if anything is wrong.

    `data_bytes` is the number of bytes after the header. Tensors must fill them without gap or overlap.
    """
    header = parse_json(content, f"the header of {name}")
    header.pop("__metadata__", None)
    if len(header) > MAX_TENSORS:
        raise DamagedFile(f"{name} has {len(header):,} tensors; at most {MAX_TENSORS:,} are read.")
    places = [_place(tensor, entry, name) for tensor, entry in header.items()]
    places.sort(key=lambda place: (place.start, place.num_bytes))
    end = 0
    for place in places:
        if place.start != end:
            raise DamagedFile(f"{name}: {place.name} overlaps another tensor, or leaves a gap.")
        end += place.num_bytes
    if end != data_bytes:
        raise DamagedFile(f"{name} has {data_bytes:,} bytes of tensors; its header says {end:,}.")
    return {place.name: place for place in places}


def _place(tensor: str, entry: Any, name: str) -> TensorPlace:
    """One entry of a header, its fields checked by themselves."""
    if len(tensor) > MAX_NAME or not tensor.isprintable():
        raise DamagedFile(f"{name} has a tensor with an unusable name.")
    fields = entry if isinstance(entry, dict) else {}
    dtype, shape, offsets = fields.get("dtype"), fields.get("shape"), fields.get("data_offsets")
    if not isinstance(dtype, str) or dtype not in DTYPES:
        raise DamagedFile(f"{name}: {tensor} has a type that is not read.")
    if not (_sizes(shape) and _sizes(offsets)) or len(shape) > MAX_DIMENSIONS or len(offsets) != 2:
        raise DamagedFile(f"{name}: {tensor} has no valid shape or place.")
    place = TensorPlace(tensor, dtype, tuple(shape), offsets[0])
    if math.prod(length or 1 for length in shape) >= 2**56:  # an empty array has lengths, too
        raise DamagedFile(f"{name}: {tensor} has an impossible shape.")
    if offsets[1] - offsets[0] != place.num_bytes:
        raise DamagedFile(f"{name}: the length of {tensor} does not match its shape.")
    return place


def _sizes(value: Any) -> TypeGuard[list[int]]:
    """Whether it is a list of sizes."""
    return isinstance(value, list) and all(type(x) is int and 0 <= x < 2**63 for x in value)


def read_tensors(
    folder: Path, file_name: str, limit: int = MAX_TENSOR_BYTES, *, keep: bool = True
) -> TensorFile:
    """Read a safetensors file once: check its header, hash it, refuse NaN and infinity.

    Without `keep` only a small piece of it is in memory at any time, and no tensor is returned.
    """
    name = str(folder / file_name)
    with open_inside(folder, file_name) as file:
        try:
            return _read(file, name, limit, keep)
        except OSError as error:
            raise DamagedFile(f"{name} cannot be read: {error.strerror}.") from None
        except MemoryError:
            raise DamagedFile(f"{name} does not fit in memory.") from None


def _read(file: BinaryIO, name: str, limit: int, keep: bool) -> TensorFile:
    size = file.seek(0, 2)
    file.seek(0)
    first = file.read(8)
    length = struct.unpack("<Q", first)[0] if len(first) == 8 else 0
    if not 2 <= length <= min(size - 8, MAX_HEADER_BYTES):
        raise DamagedFile(f"{name} is not a safetensors file, or is cut short.")
    if size > limit:
        raise DamagedFile(f"{name} has {size:,} bytes; at most {limit:,} are expected.")
    header = file.read(length)
    places = parse_header(header, size - 8 - length, name)
    digest = hashlib.sha256(first + header)
    found: dict[str, NDArray[Any]] = {}
    for place in places.values():
        tensor = _read_tensor(file, place, digest, name, keep)
        if keep:
            found[place.name] = tensor
    return TensorFile(found, places, size, digest.hexdigest())


def _read_tensor(
    file: BinaryIO, place: TensorPlace, digest: Any, name: str, keep: bool
) -> NDArray[Any]:
    """The next tensor of a file. Without `keep` its numbers are overwritten piece by piece."""
    dtype, total = DTYPES[place.dtype], place.num_bytes
    piece = PIECE_BYTES // dtype.itemsize
    count = total // dtype.itemsize
    flat = np.empty(count if keep else min(count, piece), dtype)
    for start in range(0, count, piece):
        first = start if keep else 0
        part = flat[first : first + min(piece, count - start)]
        content = part.view(np.uint8).data
        if file.readinto(content) != part.nbytes:  # type: ignore[attr-defined]
            raise DamagedFile(f"{name} is cut short.")
        digest.update(content)
        if dtype.kind == "f" and not np.isfinite(part).all():
            raise DamagedFile(f"{name}: {place.name} holds NaN or infinity.")
    return flat.reshape(place.shape) if keep else flat


def check_tensors(found: Tensors, expected: Mapping[str, Shape]) -> list[str]:
    """Every tensor that is missing, extra, or of another shape or type than float32; empty if all fit."""
    problems = [f"{name} is missing" for name in expected if name not in found]
    problems += [f"{name} is not expected" for name in found if name not in expected]
    for name, shape in expected.items():
        if name not in found:
            continue
        if found[name].shape != tuple(shape):
            problems.append(f"{name} has shape {found[name].shape} instead of {tuple(shape)}")
        elif found[name].dtype != np.float32:
            problems.append(f"{name} has type {found[name].dtype} instead of float32")
    return problems
