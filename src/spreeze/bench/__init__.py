"""Benchmarks: each measures against its reference in the same run."""
