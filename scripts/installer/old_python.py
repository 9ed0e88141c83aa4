"""The refusal of a Python that is too old for all the rest, JetPack 5's 3.8 above all.

What is imported after it needs 3.10 merely to be read, so this file keeps to what 3.6 understands.
"""

import sys

OLDEST = (3, 10)
REFUSED = 2


def refuse(version=tuple(sys.version_info)):  # type: ignore[no-untyped-def]
    """End the script in one line when this Python is too old."""
    if version[:2] >= OLDEST:
        return
    sys.stderr.write(
        "refused: this is Python {}.{}, and JetPack 5 is not supported; "
        "flash the box with JetPack 6.1 or later, or 7.2 or later, "
        "and elsewhere run this with Python 3.10 or later\n".format(*version)
    )
    sys.exit(REFUSED)
