"""The command `voices`: list, add, update, show, remove."""

from __future__ import annotations

import argparse
from pathlib import Path

from appliance.cli.options import (
    Failure,
    add_address,
    add_pronounce,
    client,
    print_line,
    pronunciations,
    read_file,
)
from appliance.client import Style, Voice
from appliance.rpc.appliance_pb2 import VoiceState


def add_voices(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    listing = actions.add_parser("list", help="list all voices")
    listing.set_defaults(run=_voices_list)
    add = actions.add_parser("add", help="register a voice, or another recording of one: a style")
    add.add_argument("name")
    add.add_argument("audio", type=Path, help="WAV, FLAC, Ogg or MP3; at most 12 s of speech")
    add.add_argument("--style", metavar="NAME", help="store it as this style of the voice, such as happy")
    add.add_argument("--transcript", required=True, help="exactly the words spoken in it")
    add.add_argument("--consent", default="", help="consent of the speaker")
    add.add_argument("--display-name", default="", help="in any script")
    add_pronounce(add)
    add.add_argument("--validate-only", action="store_true", help="check everything, store nothing")
    add.set_defaults(run=_voices_add)
    update = actions.add_parser("update", help="change display name and pronunciations")
    update.add_argument("name")
    update.add_argument("--display-name", help="in any script")
    add_pronounce(update)
    update.add_argument(
        "--forget", action="append", default=[], metavar="WORD", help="remove this pronunciation"
    )
    update.set_defaults(run=_voices_update)
    show = actions.add_parser("show", help="show a voice and its styles")
    show.add_argument("name")
    show.set_defaults(run=_voices_show)
    remove = actions.add_parser("remove", help="remove a voice")
    remove.add_argument("name")
    remove.add_argument("--style", metavar="NAME", help="remove only this style")
    remove.set_defaults(run=_voices_remove)
    for action in (listing, add, update, show, remove):
        add_address(action)


def _voices_list(options: argparse.Namespace) -> int:
    with client(options) as daemon:
        for voice in daemon.voices():
            _print_row(voice.name, voice, voice.display_name)
            for style in voice.styles:
                _print_row(f"  [{style.name}]", style)
    return 0


def _print_row(name: str, recorded: Voice | Style, display_name: str = "") -> None:
    about = recorded.problem or " · ".join(filter(None, (display_name, recorded.transcript)))
    print_line(f"{name:<24}  {recorded.duration_s:5.1f} s  {about}")


def _voices_add(options: argparse.Namespace) -> int:
    recording, words = (read_file(options.audio), options.transcript), pronunciations(options)
    if options.style is not None and (options.display_name or words):
        raise Failure(
            "--display-name and --pronounce are a voice's, not a style's: `voices update` sets them"
        )
    about = {"consent_note": options.consent, "validate_only": options.validate_only}
    with client(options) as daemon:
        if options.style is not None:
            voice = daemon.add_style(options.name, options.style, *recording, **about)
        else:
            about |= {"display_name": options.display_name, "pronunciations": words}
            voice = daemon.add_voice(options.name, *recording, **about)
    print_voice(voice)
    return 0


def _voices_update(options: argparse.Namespace) -> int:
    with client(options) as daemon:
        stored = daemon.voice(options.name).pronunciations
        words = {word: spoken for word, spoken in stored.items() if word not in options.forget}
        words.update(pronunciations(options))
        print_voice(
            daemon.update_voice(options.name, display_name=options.display_name, pronunciations=words)
        )
    return 0


def _voices_show(options: argparse.Namespace) -> int:
    with client(options) as daemon:
        print_voice(daemon.voice(options.name))
    return 0


def _voices_remove(options: argparse.Namespace) -> int:
    with client(options) as daemon:
        if options.style is not None:
            daemon.remove_style(options.name, options.style)
        else:
            daemon.remove_voice(options.name)
    return 0


def print_voice(voice: Voice | Style, indent: str = "") -> None:
    for field in voice.DESCRIPTOR.fields:
        value = getattr(voice, field.name)
        if field.name == "styles":
            for style in value:
                print_line(f"[{style.name}]")
                print_voice(style, "  ")
            continue
        if field.name == "warnings":
            value = "; ".join(value)
        elif field.name == "pronunciations":
            value = "; ".join(f"{word}={spelling}" for word, spelling in sorted(value.items()))
        elif field.name == "state":
            value = VoiceState.Name(value)
        print_line(f"{indent}{field.name:<14} {value}")
