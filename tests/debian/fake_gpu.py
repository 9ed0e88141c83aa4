"""The fake GPU of tests/fakes as modules of a Debian, in the folder that JetPack uses.

A build of an engine takes the seconds in /jetson/build_s and adds a line to /var/cache/f5-appliance/builds.
"""

import sys
import time
from pathlib import Path

sys.path.append("@CHECKOUT@")
from appliance.engine.tensorrt.trt import TrtBackend
from tests.fakes.nvidia.cudart import Runtime
from tests.fakes.nvidia.device import Device
from tests.fakes.nvidia.tensorrt import TensorRT

JETSON, BUILDS = Path("/jetson"), Path("/var/cache/f5-appliance/builds")
device = Device()
masks = [int(path.read_text()) for path in JETSON.glob("root/sys/devices/**/tpc_pg_mask")]
# The GPU has eight clusters of two multiprocessors each.
device.multiprocessors = 16 - 2 * bin(masks[0]).count("1")
TrtBackend.max_batch = 2  # for a quick warm-up
runtime, trt = Runtime(device), TensorRT(device)


def build() -> None:
    with BUILDS.open("a") as builds:
        builds.write(f"{time.time():.1f} {device.multiprocessors}\n")
    time.sleep(float((JETSON / "build_s").read_text()))


trt.before_build = build
# The engine may be built from a package that was unpacked elsewhere; now its graph is at the installed path.
trt.located = lambda path: path[path.index("/usr/lib/f5-appliance/") :]
