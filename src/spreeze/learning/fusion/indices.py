"""Integer expressions that say which element of a tensor a kernel reads or writes.

An index is a sum of digits of the kernel's variables. Views of a tensor become arithmetic on such sums, and
equal sums have equal forms: that is how the scheduler knows that two kernels touch the same element.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

Shape = tuple[int, ...]


@dataclass(frozen=True, order=True)
class Digit:
    """`variable / divisor % count`, where the variable is in [0, extent)."""

    variable: str
    extent: int
    divisor: int
    count: int

    @property
    def is_top(self) -> bool:
        """Whether nothing is above it, so that `% count` changes nothing."""
        return self.divisor * self.count >= self.extent

    def text(self) -> str:
        """As source code."""
        text = self.variable if self.divisor == 1 else f"{self.variable} / {self.divisor}u"
        return text if self.is_top else f"{text} % {self.count}u"

    def split(self, size: int) -> tuple[Digit, Digit] | None:
        """Its value divided by `size`, and the remainder, if both are digits."""
        if not self.is_top and self.count % size:
            return None
        high = Digit(self.variable, self.extent, self.divisor * size, -(-self.count // size))
        return high, Digit(self.variable, self.extent, self.divisor, min(size, self.count))


@dataclass(frozen=True)
class Index:
    """A sum of digits times factors, and a constant."""

    terms: tuple[tuple[int, Digit], ...] = ()
    constant: int = 0

    @staticmethod
    def of(variable: str, extent: int) -> Index:
        """The value of a variable in [0, extent)."""
        return Index(((1, Digit(variable, extent, 1, extent)),)) if extent > 1 else Index()

    @staticmethod
    def sum(terms: Sequence[tuple[int, Digit]], constant: int = 0) -> Index:
        """The canonical form of a sum: neighbouring digits are one digit again."""
        factors: dict[Digit, int] = {}
        for factor, digit in terms:
            if digit.count > 1:
                factors[digit] = factors.get(digit, 0) + factor
        merged = True
        while merged:
            merged = _merge_neighbours(factors)
        return Index(tuple(sorted((f, d) for d, f in factors.items() if f)), constant)

    @property
    def largest(self) -> int:
        """An upper bound of its value."""
        return self.constant + sum(f * (d.count - 1) for f, d in self.terms if f > 0)

    @property
    def smallest(self) -> int:
        """A lower bound of its value."""
        return self.constant + sum(f * (d.count - 1) for f, d in self.terms if f < 0)

    def __add__(self, other: Index | int) -> Index:
        """The sum of both."""
        if isinstance(other, int):
            return Index(self.terms, self.constant + other)
        return Index.sum((*self.terms, *other.terms), self.constant + other.constant)

    def __mul__(self, factor: int) -> Index:
        """A multiple of it."""
        return Index.sum([(f * factor, d) for f, d in self.terms], self.constant * factor)

    def divide(self, size: int) -> tuple[Index, Index]:
        """Quotient and remainder of a division by `size`; the value must not be negative."""
        if size == 1:
            return self, Index()
        high, low = [], []
        for factor, digit in self.terms:
            parts = None
            if factor % size == 0:
                high.append((factor // size, digit))
                continue
            if factor > 0 and size % factor == 0 and digit.count > size // factor:
                parts = digit.split(size // factor)
            if parts is None:
                low.append((factor, digit))
            else:
                high.append((1, parts[0]))
                low.append((factor, parts[1]))
        above, rest = divmod(self.constant, size)
        remainder = Index.sum(low, rest)
        if remainder.smallest >= 0 and remainder.largest < size:
            return Index.sum(high, above), remainder
        whole = Index.of(f"({self.text()})", self.largest + 1)
        return whole.divide(size)

    def text(self) -> str:
        """As source code: an unsigned integer."""
        parts = []
        for factor, digit in self.terms:
            text = digit.text()
            if factor != 1:
                text = f"{factor if factor > 0 else f'({factor})'} * ({text})"
            parts.append(text)
        if self.constant or not parts:
            parts.append(str(self.constant))
        return " + ".join(parts)


def _merge_neighbours(factors: dict[Digit, int]) -> bool:
    """Make one digit of two that are next to each other; False if there are none."""
    for low, factor in factors.items():
        for high, other in factors.items():
            same = (low.variable, low.extent) == (high.variable, high.extent)
            if same and high.divisor == low.divisor * low.count and other == factor * low.count:
                count = low.count * high.count
                count = min(count, -(-low.extent // low.divisor))
                del factors[low], factors[high]
                both = Digit(low.variable, low.extent, low.divisor, count)
                factors[both] = factors.get(both, 0) + factor
                return True
    return False


def contiguous_strides(shape: Shape) -> Shape:
    """Strides of a tensor whose elements lie one after the other."""
    return tuple(math.prod(shape[i + 1 :]) for i in range(len(shape)))


def flatten(index: Sequence[Index], strides: Sequence[int]) -> Index:
    """The offset of an element in memory."""
    offset = Index()
    for i, stride in zip(index, strides, strict=True):
        offset = offset + i * stride
    return offset


def unflatten(offset: Index, shape: Shape) -> tuple[Index, ...]:
    """The index of an element from its place in row-major order."""
    index: list[Index] = []
    for size in reversed(shape[1:]):
        offset, rest = offset.divide(size)
        index.append(rest)
    return (offset, *reversed(index)) if shape else ()
