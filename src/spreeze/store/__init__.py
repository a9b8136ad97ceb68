"""What a run keeps on disk: run directory, checkpoints, metrics, learning curves, videos.

Imports no other package. Imported by everything that reads or writes a run.
"""
