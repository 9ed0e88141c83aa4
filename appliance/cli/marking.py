"""The command `marked`, which looks for both marks of synthetic audio."""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path

import soundfile

from appliance.audio.tags import SOURCE_TYPE
from appliance.cli.options import print_line
from appliance.config import load
from appliance.errors import ApplianceError

MARKED, UNMARKED, UNREADABLE = 0, 1, 2
STATEMENT = re.compile(
    rb"(?:digitalSourceType=)?(?<![\"'>])%b(?:; software=[\w./+-]+)?" % re.escape(SOURCE_TYPE.encode())
)
"""The statement in a text frame or comment. After a quote or a tag it is the XML of a picture in the file."""


def add_marked(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", type=Path, metavar="FILE", help="WAV, FLAC, Ogg or MP3")
    parser.add_argument(
        "--watermark", type=Path, metavar="FOLDER", help="look for this watermark too; see audio.watermark"
    )
    parser.add_argument("--config", type=Path, help="YAML with audio.watermark, instead of --watermark")
    parser.set_defaults(run=_marked)


def _marked(options: argparse.Namespace) -> int:
    try:
        folder = options.watermark or load(options.config).audio.watermark
        with options.file.open("rb") as stream, soundfile.SoundFile(stream) as file:
            marks = _watermarked(folder, file) if folder else []
        marks = _stated(options.file.read_bytes()) + marks
    except OSError as error:
        print_line(f"appliance marked: {options.file}: {error.strerror}", sys.stderr)
        return UNREADABLE
    except soundfile.SoundFileError as error:
        print_line(f"appliance marked: {options.file}: not a WAV, FLAC, Ogg or MP3 file: {error}", sys.stderr)
        return UNREADABLE
    except ApplianceError as error:
        print_line(f"appliance marked: {error}", sys.stderr)
        return UNREADABLE
    for line in marks or ["not marked"]:
        print_line(line)
    return MARKED if marks else UNMARKED


def _stated(file: bytes) -> list[str]:
    """A line if a text of the container contains the statement, in ASCII or UTF-16."""
    if file.startswith(b"OggS"):
        # A comment continues in the next page, after that page's header and table of lengths.
        file = b"".join(page[23 + page[22] :] for page in file.split(b"OggS") if len(page) > 22)
    match = STATEMENT.search(file) or STATEMENT.search(file.replace(b"\0", b""))
    return [f"marked: {match[0].decode()}"] if match else []


def _watermarked(folder: Path, file: soundfile.SoundFile) -> list[str]:
    """A line if the watermark is in the samples. Raises ConfigError, BundleError, EngineFault."""
    from appliance.engine.watermark import Watermark

    watermark = Watermark(folder)
    confidence = watermark.confidence(
        file.read(dtype="float32", always_2d=True).mean(axis=1), file.samplerate
    )
    is_there = confidence >= watermark.manifest.threshold
    return [f"watermarked: {watermark.manifest.source}, confidence {confidence:.2f}"] * is_there
