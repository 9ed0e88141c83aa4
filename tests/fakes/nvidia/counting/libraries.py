"""Compiles counting replacements for CUDA's libraries, for the installed onnxruntime-gpu, with gcc."""

import importlib.util
import re
import subprocess
from pathlib import Path

CUDART = Path(__file__).with_name("cudart.c")
COMPUTES = re.compile(
    "emm|Forward$|AddTensor|ReduceTensor$|LtMatmul$|Transform$|geam|scal_v2|copy_v2|Execute$"
)
"""Functions that launch their own kernels."""
MAKES = re.compile("cudnnCreate.*Descriptor$|Create$")
ANSWERS = {
    "cublasCreate_v2": "void **made) { *made = (void *)0x5000; return 0; }",
    "cublasGetMathMode": "void *handle, int *mode) { *mode = 0; return 0; }",
    "cublasLtMatmulAlgoGetHeuristic": "void *a, void *b, void *c, void *d, void *e, void *f, void *g,"
    " int asked, char *results, int *found) { memset(results, 0, 128 * asked); *found = 1; return 0; }",
    "cudnnGetVersion": ") { return 91000; }",
    "cudnnGetCudartVersion": ") { return 1000 * CUDA; }",
    "cudnnGetLastErrorString": "char *text, size_t room) { if (room) *text = 0; return 0; }",
    "cudnnBackendCreateDescriptor": "int type, void **made) { *made = calloc(1, 64); return 0; }",
    "cudnnBackendGetAttribute": "void *of, int name, int type, int64_t asked, int64_t *found, void *into) {"
    " if (found) *found = 1;"
    " if (into && type != 15 && asked > 0) memset(into, 0, type == 3 || type == 1 ? 8 : 4); return 0; }",
    "cudnnCreate": "void **made) { *made = (void *)0x7000; return 0; }",
    "cudnnGetStream": "void *handle, void **stream) { *stream = 0; return 0; }",
}
"""Functions whose result the provider reads."""
NAMES = ("cublasGetStatusName", "cublasGetStatusString", "cudnnGetErrorString")
HEAD = """#include <stdint.h>
#include <stdlib.h>
#include <string.h>
void counting_call(const char *);
"""


def provider() -> Path:
    """The installed CUDA provider of ONNX Runtime."""
    found = importlib.util.find_spec("onnxruntime")
    assert found is not None and found.origin is not None
    return Path(found.origin).parent / "capi/libonnxruntime_providers_cuda.so"


def build(folder: Path) -> list[Path]:
    """Write the libraries into `folder` and return them, libcudart first.

    Raises RuntimeError if the provider calls a function of libcudart that `cudart.c` lacks.
    """
    found = provider()
    called = [name.split("@") for name in _names(found, "--undefined-only") if "@lib" in name]
    needed: dict[str, set[str]] = {}
    for name, library in called:
        needed.setdefault(library, set()).add(name)
    [cudart] = (library for library in needed if library.startswith("libcudart"))
    cuda = cudart.rpartition(".")[2]
    made = [_compile(folder, cudart, CUDART, cuda, versioned=True)]
    defined = {name.split("@")[0] for name in _names(made[0], "--defined-only")}
    if unknown := needed.pop(cudart) - defined:
        raise RuntimeError(f"{CUDART.name} has no {', '.join(sorted(unknown))}, which this provider calls")
    # The provider opens these by name at run time (since 1.30), like the driver and the random numbers.
    versioned = set(needed)
    by_name = re.findall(rb"(?<=\0)cudnn[A-Z]\w*(?=\0)", found.read_bytes())
    needed.setdefault("libcudnn.so.9", set()).update({name.decode() for name in by_name})
    needed["libcudnn.so.9"].add("cudnnGetCudartVersion")
    needed.setdefault("libcurand.so.10", set()).add("curandCreateGenerator")
    needed.setdefault("libcuda.so.1", set()).update({"cuInit", "cuTensorMapEncodeTiled"})
    for library, names in sorted(needed.items()):
        source = folder / f"{library.partition('.')[0]}.c"
        source.write_text(HEAD + "".join(map(_function, sorted(names))))
        made.append(_compile(folder, library, source, cuda, versioned=library in versioned))
    return made


def _names(library: Path, which: str) -> list[str]:
    listed = subprocess.run(["nm", "-D", which, library], capture_output=True, text=True, check=True).stdout
    return [line.split()[-1] for line in listed.splitlines()]


def _function(name: str) -> str:
    if name in ANSWERS:
        return f"size_t {name}({ANSWERS[name]}\n"
    if name in NAMES:
        return f'const char *{name}(int status) {{ return status ? "an error" : "success"; }}\n'
    if COMPUTES.search(name):
        return f'int {name}() {{ counting_call("{name}"); return 0; }}\n'
    if MAKES.search(name):
        return f"int {name}(void **made) {{ *made = calloc(1, 64); return 0; }}\n"
    return f"int {name}() {{ return 0; }}\n"


def _compile(folder: Path, library: str, source: Path, cuda: str, *, versioned: bool) -> Path:
    """Compile a shared library of that name; a versioned one has symbols of a version of the same name, like
    NVIDIA's."""
    options = ["-O1", "-w", "-fPIC", "-shared", f"-DCUDA={cuda}", f"-Wl,-soname,{library}", "-pthread"]
    if versioned:
        script = folder / f"{library}.map"
        script.write_text(f"{library} {{ global: *; }};\n")
        options.append(f"-Wl,--version-script={script}")
    out = folder / library
    links = [] if source == CUDART else [f"-L{folder}", f"-l:libcudart.so.{cuda}", "-Wl,-rpath,$ORIGIN"]
    subprocess.run(["gcc", *options, source, "-o", out, *links], check=True)
    return out
