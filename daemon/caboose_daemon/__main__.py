"""`python -m caboose_daemon`, the same as `caboose`."""

from caboose_daemon.entry import main

main()
