import os
import sys

OLDEST, NEWEST = (3, 10), (3, 99)  # scripts/debian/package.py sets both to one version
if not OLDEST <= sys.version_info[:2] <= NEWEST:
    wanted = ".".join(map(str, OLDEST)) + ("" if OLDEST == NEWEST else " or later")
    here = ".".join(map(str, sys.version_info[:3]))
    sys.stderr.write(f"appliance: it takes Python {wanted}; {sys.executable} is {here}\n")
    raise SystemExit(2)  # f5-health's 1 would mean WARN

# ONNX Runtime 1.30 and 1.31 send telemetry to their maker, unless this is set before their import.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
