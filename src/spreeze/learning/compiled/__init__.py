"""The compiled update: what it depends on, how it is built, stored, loaded and verified."""
