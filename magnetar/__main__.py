"""`python -m magnetar` is the command `magnetar`."""

from magnetar.cli import main

main()
