"""`python -m turnout`."""

from turnout.cli.main import main

main()
