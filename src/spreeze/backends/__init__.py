"""Backends: ways to run roles. Each takes jobs and hands back handles."""
