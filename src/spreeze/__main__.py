"""`python -m spreeze`."""

from spreeze.cli import main

main()
