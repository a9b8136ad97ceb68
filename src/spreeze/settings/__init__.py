"""Every knob: its default, its bounds, presets, and how "auto" is resolved on this machine.

Imported by `roles` and everything above them.
"""
