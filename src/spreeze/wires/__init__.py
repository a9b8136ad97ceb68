"""Wires: how roles exchange data through shared memory. Each wire has both ends in one file.

`arena` is the memory itself. `experience` carries rows from samplers to the learner, `weights` carries
policies from the learner to everybody else, and `control` has the small numbers that all roles read.
No wire has a lock: a process that is killed while it holds one would block the others forever.

Imported by `roles` and everything above them.
"""
