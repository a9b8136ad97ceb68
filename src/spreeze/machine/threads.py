"""How many threads the linear algebra of numpy uses; read when numpy is imported, so imports nothing itself."""

from __future__ import annotations

ONE_THREAD = dict.fromkeys(
    ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS"), "1"
)
"""Environment variables of a process that acts: its products are too small to be shared, and threads that wait for
each other slow them down many times on a busy machine."""
