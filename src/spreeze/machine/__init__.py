"""The machine: cores, memory, GPUs, CPU affinity and process lifetime. Imports no torch."""
