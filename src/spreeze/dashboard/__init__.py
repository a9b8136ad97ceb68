"""The live page. It reads run directories, and neither writes files nor talks to processes of a run.

Imported by `run`, which starts it beside a run, and by `cli`.
"""
