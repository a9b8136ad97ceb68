"""The machine: cores, memory, GPUs, CPU affinity and process lifetime. Imports no torch.

Imports no other package. Every other package may import it.
"""
