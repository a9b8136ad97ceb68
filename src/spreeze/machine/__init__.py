"""The machine: cores, memory, GPUs, processor affinity, process lifetimes. Asks the system only."""
