"""Roles: what the processes of a run do. No role imports another; wires connect them.

Imported by `run`, which starts them as processes, and everything above it.
"""
