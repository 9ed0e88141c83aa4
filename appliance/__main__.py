"""`python -m appliance` is the `appliance` command."""

import signal
import sys

if sys.argv[1:2] == ["gateway"]:
    # As its command does, but before what the command line imports, which takes half a second.
    signal.signal(signal.SIGHUP, signal.SIG_IGN)

from appliance.cli import main

sys.exit(main())
