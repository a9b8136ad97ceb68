"""Environments: `targets` makes and checks them, `stepping` turns their steps into transitions.

The only place that knows Gymnasium, auto-reset, truncation and n-step returns.
"""
