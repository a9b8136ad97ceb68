"""Environments: made, checked, stepped in groups, turned into rows, rendered.

Only this package knows Gymnasium, auto-reset, truncation and n-step returns. Imported by `roles` and everything above them.
"""
