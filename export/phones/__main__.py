"""`python -m export.phones`: make appliance/text/phones's data anew from the installed hibari."""

from __future__ import annotations

import argparse
import importlib.util
import sys
from pathlib import Path

from appliance.text.phones import front
from export.phones.compile import compile_phones


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m export.phones", description=__doc__)
    parser.add_argument(
        "--assets", type=Path, metavar="FOLDER", help="hibari/assets; default: of the installed package"
    )
    parser.add_argument("--out", type=Path, default=front.HERE)
    arguments = parser.parse_args()
    assets = arguments.assets
    if assets is None:
        package = importlib.util.find_spec("hibari")
        if package is None or package.origin is None:
            print("hibari is not installed: pip install -r scripts/requirements/voice.txt", file=sys.stderr)
            return 2
        assets = Path(package.origin).parent / "assets"
    compile_phones(assets, arguments.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
