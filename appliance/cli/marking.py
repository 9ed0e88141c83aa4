"""Command that looks for both marks of synthetic audio: marked."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import soundfile

from appliance.audio.tags import SOURCE_TYPE
from appliance.cli.options import print_line
from appliance.config import load
from appliance.errors import ApplianceError

MARKED, UNMARKED, UNREADABLE = 0, 1, 2


def add_marked(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", type=Path, metavar="FILE", help="WAV, FLAC, Ogg or MP3")
    parser.add_argument(
        "--watermark", type=Path, metavar="FOLDER", help="looked for too; see audio.watermark"
    )
    parser.add_argument("--config", type=Path, help="YAML with audio.watermark, in place of --watermark")
    parser.set_defaults(run=_marked)


def _marked(options: argparse.Namespace) -> int:
    try:
        folder = options.watermark or load(options.config).audio.watermark
        with options.file.open("rb") as stream, soundfile.SoundFile(stream) as file:
            texts = file.copy_metadata().values()
            found = [f"marked: {text}" for text in texts if SOURCE_TYPE in text][:1]
            found += _watermarked(folder, file) if folder else []
    except OSError as error:
        print_line(f"appliance marked: {options.file}: {error.strerror}", sys.stderr)
        return UNREADABLE
    except soundfile.SoundFileError as error:
        print_line(f"appliance marked: {options.file}: is no WAV, FLAC, Ogg or MP3: {error}", sys.stderr)
        return UNREADABLE
    except ApplianceError as error:
        print_line(f"appliance marked: {error}", sys.stderr)
        return UNREADABLE
    for line in found or ["not marked"]:
        print_line(line)
    return MARKED if found else UNMARKED


def _watermarked(folder: Path, file: soundfile.SoundFile) -> list[str]:
    """A line if the mark is in the samples. Raises ConfigError, BundleError, EngineFault."""
    from appliance.engine.watermark import Watermark

    watermark = Watermark(folder)
    confidence = watermark.confidence(
        file.read(dtype="float32", always_2d=True).mean(axis=1), file.samplerate
    )
    is_there = confidence >= watermark.manifest.threshold
    return [f"watermarked: {watermark.manifest.source}, confidence {confidence:.2f}"] * is_there
