"""`python -m tunery.cli` is `tunery`."""

from tunery.cli import main

main()
