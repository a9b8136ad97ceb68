"""Roles: the bodies of the processes. None imports another; the wires join them."""
