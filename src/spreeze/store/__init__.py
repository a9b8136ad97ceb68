"""What a run keeps on disk: the run directory, checkpoints, metrics, learning curves and videos.

This package imports no other package of Spreeze. Everything that reads or writes a run imports it.
"""
