"""Wires: how roles exchange data through shared memory, without locks; each wire has both ends in one file.

Imported by `roles` and everything above them.
"""
