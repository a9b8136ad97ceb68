"""The Python surface: train, evaluate, and what a run offers afterwards.

The command line is the same for people who type. Imported by `spreeze` itself, when a public name is first used.
"""
