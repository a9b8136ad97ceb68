"""From losses to network updates: replay, optimiser, statistics, compiled and two-device updates.

Needs torch. Imported by `settings` (the probe) and everything above it.
"""
