"""`python -m spreeze`."""

import sys

# Python puts the working folder first on the import path. Nothing may be imported from there before it is gone.
if not sys.flags.safe_path and not __file__.startswith(f"{sys.path[0]}/spreeze/"):
    del sys.path[0]

from spreeze.cli import main

main()
