"""`caboose daemon` with a clock that can be moved: `python -m chaos.clocked_daemon CLOCK daemon ...`."""

import sys
from pathlib import Path

from chaos import clock

if __name__ == "__main__":
    clock.install()
    clock.follow(Path(sys.argv.pop(1)))
    from caboose_daemon.entry import main

    main()
