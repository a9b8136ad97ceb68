"""The commands: one module each, with `main(arguments, started_s)` that returns the exit code."""
