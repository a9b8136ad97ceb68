"""Roles: what the processes of a run do. No role imports another; wires connect them."""
