"""A network with two hidden layers in three GPU kernels, written in Triton.

A compiler makes one kernel per layer and direction, and each writes its result to memory for the next one
to read. Here a block of rows stays on the chip from the first layer to the last: the kernel computes a few
units of layer 1 at a time and adds their contribution to layer 2 at once. The backward pass works the same
way. It stores only what the weight gradients need: the hidden units and the gradients of the
pre-activations. Weight gradients are sums over the batch: each block sums its share of the rows, and the
shares are then added in a fixed order, so results repeat.

Matrix products take bfloat16 inputs and accumulate in float32. The last layer is not rounded to bfloat16:
each of its numbers is split into the sum of two bfloat16 numbers, so that values of several hundred
keep their small differences.

Parameters in capitals are compile-time constants. PAD is SIZE rounded up to what a matrix unit accepts.
`flat` holds all parameters in float32, `rounded` the same in TYPE; `x0` and `x1` are the two inputs.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _rows_of(x, rows, there, stride, k, SIZE: tl.constexpr, TYPE: tl.constexpr):
    """Columns `k` of the given rows of x; zero where there is no row or column."""
    at = x + rows[:, None] * stride + k[None, :]
    return tl.load(at, mask=there[:, None] & (k < SIZE)[None, :], other=0.0).to(TYPE)


@triton.jit
def _weights(w, k, cols, WIDTH: tl.constexpr, SIZE: tl.constexpr):
    """Lines `k` and columns `cols` of a matrix with WIDTH columns; zero for lines from SIZE on."""
    return tl.load(w + k[:, None] * WIDTH + cols[None, :], mask=(k < SIZE)[:, None], other=0.0)


@triton.jit
def forward(
    flat, rounded, x0, x1, out, h1, h2, num_rows, stride0, stride1,
    SIZE0: tl.constexpr, PAD0: tl.constexpr, SIZE1: tl.constexpr, PAD1: tl.constexpr,
    H: tl.constexpr, OUT: tl.constexpr, OUT_PAD: tl.constexpr, NETS: tl.constexpr,
    ROWS: tl.constexpr, COLS: tl.constexpr, SAVE: tl.constexpr, TYPE: tl.constexpr,
):  # fmt: skip
    """All layers, for one block of rows of one network."""
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    there = rows < num_rows
    net = tl.program_id(1)
    lines = (net * num_rows + rows)[:, None]
    SIZE: tl.constexpr = SIZE0 + SIZE1
    b0 = NETS * SIZE * H
    w1 = b0 + NETS * H
    b1 = w1 + NETS * H * H
    w2 = b1 + NETS * H
    b2 = w2 + NETS * H * OUT
    units = tl.arange(0, H)
    inputs0 = tl.arange(0, PAD0)
    inputs1 = tl.arange(0, PAD1)
    in0 = _rows_of(x0, rows, there, stride0, inputs0, SIZE0, TYPE)
    if SIZE1 > 0:
        in1 = _rows_of(x1, rows, there, stride1, inputs1, SIZE1, TYPE)
    sums = tl.zeros([ROWS, H], tl.float32)
    for first in range(0, H, COLS):
        cols = first + tl.arange(0, COLS)
        bias = tl.load(flat + b0 + net * H + cols)
        z = tl.zeros([ROWS, COLS], tl.float32) + bias[None, :]
        w0 = rounded + net * SIZE * H
        z = tl.dot(in0, _weights(w0, inputs0, cols, H, SIZE0), z)
        if SIZE1 > 0:
            z = tl.dot(in1, _weights(w0 + SIZE0 * H, inputs1, cols, H, SIZE1), z)
        few = tl.maximum(z, 0.0).to(TYPE)
        if SAVE:
            tl.store(h1 + lines * H + cols[None, :], few, mask=there[:, None])
        sums = tl.dot(few, _weights(rounded + w1 + net * H * H, cols, units, H, H), sums)
    bias = tl.load(flat + b1 + net * H + units)
    hidden = tl.maximum(sums + bias[None, :], 0.0).to(TYPE)
    if SAVE:
        tl.store(h2 + lines * H + units[None, :], hidden, mask=there[:, None])
    k = tl.arange(0, OUT_PAD)
    at = flat + w2 + net * H * OUT + units[:, None] * OUT + k[None, :]
    w = tl.load(at, mask=(k < OUT)[None, :], other=0.0)
    high = w.to(TYPE)
    result = tl.dot(hidden, high)
    if TYPE != tl.float32:
        result = tl.dot(hidden, (w - high.to(tl.float32)).to(TYPE), result)
    bias = tl.load(flat + b2 + net * OUT + k, mask=k < OUT, other=0.0)
    tl.store(
        out + lines * OUT + k[None, :], result + bias[None, :], mask=there[:, None] & (k < OUT)[None, :]
    )  # fmt: skip


@triton.jit
def backward_rows(
    flat, rounded, h1, h2, dout, dz1, dz2, dx1, num_rows,
    SIZE0: tl.constexpr, SIZE1: tl.constexpr, PAD1: tl.constexpr,
    H: tl.constexpr, OUT: tl.constexpr, OUT_PAD: tl.constexpr, NETS: tl.constexpr,
    ROWS: tl.constexpr, COLS: tl.constexpr, FOR_WEIGHTS: tl.constexpr, FOR_X1: tl.constexpr, TYPE: tl.constexpr,
):  # fmt: skip
    """The gradients of the pre-activations and of the second input, from the gradient of the outputs."""
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    there = rows < num_rows
    net = tl.program_id(1)
    lines = (net * num_rows + rows)[:, None]
    SIZE: tl.constexpr = SIZE0 + SIZE1
    w1 = NETS * (SIZE * H + H)
    w2 = w1 + NETS * (H * H + H)
    units = tl.arange(0, H)
    k = tl.arange(0, OUT_PAD)
    at = dout + lines * OUT + k[None, :]
    d = tl.load(at, mask=there[:, None] & (k < OUT)[None, :], other=0.0)
    at = flat + w2 + net * H * OUT + units[None, :] * OUT + k[:, None]
    w = tl.load(at, mask=(k < OUT)[:, None], other=0.0)
    d_high = d.to(TYPE)
    w_high = w.to(TYPE)
    dh = tl.dot(d_high, w_high)
    if TYPE != tl.float32:
        dh = tl.dot(d_high, (w - w_high.to(tl.float32)).to(TYPE), dh)
        dh = tl.dot((d - d_high.to(tl.float32)).to(TYPE), w_high, dh)
    hidden = tl.load(h2 + lines * H + units[None, :], mask=there[:, None], other=0.0)
    dz = tl.where(hidden > 0, dh, 0.0).to(TYPE)
    if FOR_WEIGHTS:
        tl.store(dz2 + lines * H + units[None, :], dz, mask=there[:, None])
    if FOR_X1:
        inputs = tl.arange(0, PAD1)
        dx = tl.zeros([ROWS, PAD1], tl.float32)
    for first in range(0, H, COLS):
        cols = first + tl.arange(0, COLS)
        layer = _weights(rounded + w1 + net * H * H, cols, units, H, H)
        few = tl.load(h1 + lines * H + cols[None, :], mask=there[:, None], other=0.0)
        dfew = tl.where(few > 0, tl.dot(dz, tl.trans(layer)), 0.0).to(TYPE)
        if FOR_WEIGHTS:
            tl.store(dz1 + lines * H + cols[None, :], dfew, mask=there[:, None])
        if FOR_X1:
            first_layer = _weights(rounded + (net * SIZE + SIZE0) * H, inputs, cols, H, SIZE1)
            dx = tl.dot(dfew, tl.trans(first_layer), dx)
    if FOR_X1:
        at = dx1 + lines * SIZE1 + inputs[None, :]
        tl.store(at, dx, mask=there[:, None] & (inputs < SIZE1)[None, :])


@triton.jit
def _outer(
    a, stride_a, m, b, stride_b, n, begin, num_rows,
    SIZE_M: tl.constexpr, SIZE_N: tl.constexpr,
    SHARE: tl.constexpr, STEP: tl.constexpr, TYPE: tl.constexpr, EXACT: tl.constexpr,
):  # fmt: skip
    """a^T @ b over SHARE rows from `begin`, for columns m of a and n of b."""
    total = tl.zeros([m.shape[0], n.shape[0]], tl.float32)
    for start in range(0, SHARE, STEP):
        rows = begin + start + tl.arange(0, STEP)
        left = tl.trans(_rows_of(a, rows, rows < num_rows, stride_a, m, SIZE_M, TYPE))
        right = _rows_of(b, rows, rows < num_rows, stride_b, n, SIZE_N, b.dtype.element_ty)
        high = right.to(TYPE)
        total = tl.dot(left, high, total)
        if EXACT:
            total = tl.dot(left, (right - high.to(tl.float32)).to(TYPE), total)
    return total


@triton.jit
def _column_sums(
    b, stride, n, begin, num_rows,
    SIZE_N: tl.constexpr, SHARE: tl.constexpr, STEP: tl.constexpr,
):  # fmt: skip
    """The sum of SHARE rows from `begin`, for columns n of b."""
    total = tl.zeros([STEP, n.shape[0]], tl.float32)
    for start in range(0, SHARE, STEP):
        rows = begin + start + tl.arange(0, STEP)
        total += _rows_of(b, rows, rows < num_rows, stride, n, SIZE_N, tl.float32)
    return tl.sum(total, 0)


@triton.jit
def backward_weights(
    x0, x1, h1, h2, dout, dz1, dz2, shares, num_rows, num_params, stride0, stride1,
    SIZE0: tl.constexpr, PAD0: tl.constexpr, SIZE1: tl.constexpr, PAD1: tl.constexpr,
    H: tl.constexpr, OUT: tl.constexpr, OUT_PAD: tl.constexpr, NETS: tl.constexpr,
    TILE: tl.constexpr, SHARE: tl.constexpr, STEP: tl.constexpr, TYPE: tl.constexpr,
):  # fmt: skip
    """One tile of the gradient of one weight matrix or bias, summed over one share of the rows."""
    SIZE: tl.constexpr = SIZE0 + SIZE1
    ACROSS: tl.constexpr = H // TILE
    b0 = NETS * SIZE * H
    w1 = b0 + NETS * H
    b1 = w1 + NETS * H * H
    w2 = b1 + NETS * H
    b2 = w2 + NETS * H * OUT
    net = tl.program_id(1)
    begin = tl.program_id(2) * SHARE
    shares += tl.program_id(2) * num_params
    lines = net.to(tl.int64) * num_rows
    h1 += lines * H
    h2 += lines * H
    dz1 += lines * H
    dz2 += lines * H
    dout += lines * OUT
    EXACT: tl.constexpr = TYPE != tl.float32
    job = tl.program_id(0)
    if job < ACROSS * ACROSS:
        m = job // ACROSS * TILE + tl.arange(0, TILE)
        n = job % ACROSS * TILE + tl.arange(0, TILE)
        total = _outer(h1, H, m, dz2, H, n, begin, num_rows, H, H, SHARE, STEP, TYPE, False)
        tl.store(shares + w1 + net * H * H + m[:, None] * H + n[None, :], total)
    job -= ACROSS * ACROSS
    if (job >= 0) & (job < ACROSS):
        m = tl.arange(0, PAD0)
        n = job * TILE + tl.arange(0, TILE)
        total = _outer(
            x0, stride0, m, dz1, H, n, begin, num_rows, SIZE0, H, SHARE, STEP, TYPE, False
        )
        at = shares + net * SIZE * H + m[:, None] * H + n[None, :]
        tl.store(at, total, mask=(m < SIZE0)[:, None])
    job -= ACROSS
    if SIZE1 > 0:
        if (job >= 0) & (job < ACROSS):
            m = tl.arange(0, PAD1)
            n = job * TILE + tl.arange(0, TILE)
            total = _outer(
                x1, stride1, m, dz1, H, n, begin, num_rows, SIZE1, H, SHARE, STEP, TYPE, False
            )
            at = shares + (net * SIZE + SIZE0) * H + m[:, None] * H + n[None, :]
            tl.store(at, total, mask=(m < SIZE1)[:, None])
        job -= ACROSS
    k = tl.arange(0, OUT_PAD)
    if (job >= 0) & (job < ACROSS):
        m = job * TILE + tl.arange(0, TILE)
        total = _outer(h2, H, m, dout, OUT, k, begin, num_rows, H, OUT, SHARE, STEP, TYPE, EXACT)
        at = shares + w2 + net * H * OUT + m[:, None] * OUT + k[None, :]
        tl.store(at, total, mask=(k < OUT)[None, :])
    job -= ACROSS
    n = job % ACROSS * TILE + tl.arange(0, TILE)
    if (job >= 0) & (job < ACROSS):
        sums = _column_sums(dz1, H, n, begin, num_rows, H, SHARE, STEP)
        tl.store(shares + b0 + net * H + n, sums)
    job -= ACROSS
    if (job >= 0) & (job < ACROSS):
        sums = _column_sums(dz2, H, n, begin, num_rows, H, SHARE, STEP)
        tl.store(shares + b1 + net * H + n, sums)
    if job == ACROSS:
        sums = _column_sums(dout, OUT, k, begin, num_rows, OUT, SHARE, STEP)
        tl.store(shares + b2 + net * OUT + k, sums, mask=k < OUT)
