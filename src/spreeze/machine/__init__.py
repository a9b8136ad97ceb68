"""The machine: cores, memory, GPUs, CPU affinity and process lifetime. Imports no torch.

Imports no other package. Imported by `algos` and everything above them.
"""
