"""Wires: shared-memory connections between roles, both ends of each in one file."""
