"""The commands, one module each with a `main(arguments, started_s) -> exit code`."""
