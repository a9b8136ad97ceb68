"""A training run from the command to its summary: plan, processes, supervision, progress.

Imported by `cli` and `bench`. This file stays empty: the fork servers start before anything else is imported.
"""
