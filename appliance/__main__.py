"""`python -m appliance` is the `appliance` command."""

import sys

from appliance import hangups

if sys.argv[1:]:
    hangups.expect(sys.argv[1])

from appliance.cli import main

sys.exit(main())
