"""Every knob: its default and bounds, presets, and how "auto" is resolved on this machine.

Imported by `roles` and everything above them.
"""
