"""Wheels for `scripts/gpu-check` on a machine without a network, in the locks' versions, and the graphs.

    python -m tests.benchmarks.wheels FOLDER [--capability 90] [--python 3.12] [--lot MB] [NAME...]

What an image with torch has is left out: cuda-bindings, safetensors, pytest, hypothesis, grpcio, torchdiffeq
and their like; a NAME adds one. FOLDER/1, FOLDER/2, … hold at most --lot each, larger files in pieces.
"""

from __future__ import annotations

import argparse
import shutil
import struct
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from tests.benchmarks import weightless
from tests.kept import kept

LOCKS = Path(__file__).resolve().parents[2] / "scripts/requirements"
NAMES = (
    "onnxruntime-gpu",
    *("f5-tts", "vocos", "bigvgan", "x-transformers", "torch-einops-utils", "einx", "frozendict", "loguru"),
    *("librosa", "audioread", "pooch", "decorator", "platformdirs", "soundfile", "soxr", "cffi", "pycparser"),
    *("pydub", "rjieba", "pypinyin", "emoji", "grpcio-health-checking", "grpcio-reflection"),
    *("googleapis-common-protos", "protobuf"),
)
RTX = ("tensorrt-rtx-cu13-bindings", "tensorrt-rtx-cu13-libs")
PROVIDER = "libonnxruntime_providers_cuda.so"
GLIBC = range(35, 16, -1)
CONTAINER = struct.pack("<IHH", 0xBA55ED50, 1, 16)
"""Head of a container of machine code in a CUDA library: magic number, version, length of the head."""
PTX, ELF = 1, 2


def fetch(folder: Path, python: str, names: list[str]) -> None:
    """Download for a version of Python, without dependencies, at the locks' pins."""
    pins = [f"--constraint={LOCKS / lock}.txt" for lock in ("ort-cuda", "upstream", "tensorrt")]
    tags = [*(f"manylinux_2_{minor}_x86_64" for minor in GLIBC), "manylinux2014_x86_64", "manylinux1_x86_64"]
    platforms = [word for tag in tags for word in ("--platform", tag)] + ["--python-version", python]
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
    subprocess.run([*command, *pins, *platforms, "--dest", folder, *names], check=True)


def slim(code: bytearray, capability: int) -> None:
    """Blank the machine code of other cards, which a driver does not read: it packs to nothing."""
    at = 0
    while (at := code.find(CONTAINER, at)) >= 0:
        end = at + 16 + struct.unpack_from("<Q", code, at + 8)[0]
        entries, at = [], at + 16
        while at < end:
            kind, _, head, size = struct.unpack_from("<HHIQ", code, at)
            entries.append((kind, struct.unpack_from("<I", code, at + 28)[0], at + head, size))
            at += head + size
        kept = [entry for entry in entries if entry[:2] == (ELF, capability)]
        # Without any for the card, the driver compiles from the portable code.
        kept = kept or [entry for entry in entries if entry[0] == PTX] or entries
        for _, _, start, size in (entry for entry in entries if entry not in kept):
            code[start : start + size] = bytes(size)


def slim_wheel(wheel: Path, capability: int) -> None:
    new = wheel.with_suffix(".new")
    with zipfile.ZipFile(wheel) as old, zipfile.ZipFile(new, "w", zipfile.ZIP_DEFLATED) as slimmed:
        for item in old.infolist():
            content = bytearray(old.read(item))
            if item.filename.endswith(PROVIDER):
                slim(content, capability)
            slimmed.writestr(item, bytes(content), zipfile.ZIP_LZMA)
    new.rename(wheel)


def lots(files: list[Path], folder: Path, size: int) -> None:
    """Spread files over numbered folders, in pieces where they do not fit."""
    lot, room = 0, 0
    for file in sorted(files, key=lambda file: -file.stat().st_size):
        content = file.read_bytes()
        parts = [content[start : start + size] for start in range(0, len(content), size)]
        for number, part in enumerate(parts):
            if len(part) > room:
                lot, room = lot + 1, size
                (folder / str(lot)).mkdir(parents=True)
            name = file.name if len(parts) == 1 else f"{file.name}.part{number:02}"
            (folder / str(lot) / name).write_bytes(part)
            room -= len(part)


def main() -> None:
    parser = argparse.ArgumentParser(prog="gpu-check pack")
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="*", metavar="NAME", help="further packages")
    parser.add_argument("--capability", type=int, metavar="90", help="keep machine code for this card alone")
    parser.add_argument("--python", default="3.12", help="of the other machine (%(default)s)")
    parser.add_argument("--rtx", action="store_true", help="TensorRT-RTX too, for 7.5, 8.6, 8.9 and 12.x")
    parser.add_argument("--lot", type=int, default=28, metavar="MB", help="(%(default)s)")
    options = parser.parse_args()
    shutil.rmtree(options.folder, ignore_errors=True)
    graphs = kept("gpu-check", ("tests.benchmarks.weightless",), weightless.write, "F5TTS_v1_Base", "fp16")
    with tempfile.TemporaryDirectory() as name:
        fetch(Path(name), options.python, [*NAMES, *options.names, *(RTX if options.rtx else ())])
        for wheel in Path(name).glob("onnxruntime_gpu-*") if options.capability else ():
            slim_wheel(wheel, options.capability)
        lots([*Path(name).iterdir(), graphs / weightless.ARCHIVE], options.folder, options.lot << 20)
    for folder in sorted(options.folder.iterdir()):
        print(f"{folder}: {sum(path.stat().st_size for path in folder.iterdir()) / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
