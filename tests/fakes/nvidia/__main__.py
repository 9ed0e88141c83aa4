"""`python -m tests.fakes.nvidia serve …`: the command line with a fake GPU; it exits with 3 after a wrong
use."""

import sys

from appliance.cli import main
from appliance.engine.ort_cuda import OrtCudaBackend
from appliance.engine.tensorrt.trt import TrtBackend
from tests.fakes.nvidia import installed
from tests.fakes.nvidia.device import Device
from tests.fakes.nvidia.tensorrt import TensorRT

# Keep the warm-up quick.
OrtCudaBackend.max_batch = TrtBackend.max_batch = 2

device = Device()
with installed(device, TensorRT(device)):
    status = main(sys.argv[1:])
for wrong in device.wrong:
    print(f"fake GPU: {wrong}", file=sys.stderr)
print(f"fake GPU: {dict(device.counts)}", file=sys.stderr)
sys.exit(3 if device.wrong else status)
