"""Command that reads the mark of synthetic audio: marked."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import soundfile

from appliance.audio.tags import SOURCE_TYPE
from appliance.cli.options import print_line

MARKED, UNMARKED, UNREADABLE = 0, 1, 2


def add_marked(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", type=Path, metavar="FILE", help="WAV, FLAC, Ogg or MP3")
    parser.set_defaults(run=_marked)


def _marked(options: argparse.Namespace) -> int:
    try:
        with options.file.open("rb") as stream, soundfile.SoundFile(stream) as file:
            texts = file.copy_metadata().values()
    except OSError as error:
        print_line(f"appliance marked: {options.file}: {error.strerror}", sys.stderr)
        return UNREADABLE
    except soundfile.SoundFileError as error:
        print_line(f"appliance marked: {options.file}: is no WAV, FLAC, Ogg or MP3: {error}", sys.stderr)
        return UNREADABLE
    mark = next((text for text in texts if SOURCE_TYPE in text), "")
    print_line(f"marked: {mark}" if mark else "not marked")
    return MARKED if mark else UNMARKED
