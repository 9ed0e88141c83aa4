"""`python -m appliance` is the `appliance` command."""

import sys

from appliance import sighup

if sys.argv[1:]:
    sighup.expect(sys.argv[1])

from appliance.cli import main

sys.exit(main())
