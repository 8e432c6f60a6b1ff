"""`python -m tunery` is the command line, too."""

from tunery.cli import main

main()
