"""`python -m tests.fakes.gpu serve …`: the command line with a fake GPU; a wrong use ends it with 3."""

from __future__ import annotations

import sys

from appliance.cli import main
from appliance.engine.ort_cuda import OrtCudaBackend
from tests.fakes.gpu import installed
from tests.fakes.gpu.device import Device

OrtCudaBackend.buckets = (128, 512)

with installed(Device()) as (runtime, _):
    status = main(sys.argv[1:])
for wrong in runtime.device.wrong:
    print(f"fake GPU: {wrong}", file=sys.stderr)
print(f"fake GPU: {dict(runtime.device.counts)}", file=sys.stderr)
sys.exit(3 if runtime.device.wrong else status)
