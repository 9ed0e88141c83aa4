"""The commands of a speaker: say, cancel, queue."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from appliance.cli.options import (
    FAILED,
    Failure,
    add_address,
    add_pronounce,
    client,
    print_line,
    pronunciations,
)
from appliance.client import SPEAK_S, CallFailed, Client, Event, Header, Piece, Reply, Utterance
from appliance.encodings import SUFFIXES, EncodingName
from appliance.options import ENCODINGS, OPTIONS, OptionKind, Options
from appliance.rpc.appliance_pb2 import UtteranceState

if TYPE_CHECKING:
    from appliance.cli.playing import Player

NUMBERS = {OptionKind.WHOLE: int, OptionKind.NUMBER: float, OptionKind.DURATION: float}


def add_say(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("text", nargs="?", help="absent: each line of standard input, as it comes")
    parser.add_argument("--voice", required=True)
    parser.add_argument("-o", "--out", type=Path, metavar="FILE", help=f"its suffix: {', '.join(SUFFIXES)}")
    parser.add_argument("--play", action="store_true", help="play the audio while it is made")
    parser.add_argument("--encoding", choices=ENCODINGS, help="absent: by the suffix of FILE")
    parser.add_argument("--stream", action="store_true", help="receive the audio while it is made")
    for option in OPTIONS:
        if option.kind is OptionKind.WORDS:
            add_pronounce(parser)
        elif option.say:
            choices = [choice.replace("_", "-") for choice in option.choices] or None
            value: dict[str, Any] = {"type": NUMBERS.get(option.kind, str), "choices": choices}
            value["metavar"] = option.metavar
            if option.kind is OptionKind.FLAG:
                value = {"action": "store_const", "const": True}
            parser.add_argument(option.argument, dest=option.name, help=option.say, **value)
    parser.add_argument("--timeout", type=float, default=SPEAK_S, metavar="S", help="give up (%(default)s s)")
    parser.add_argument("--table", action="store_true", help="print the timings")
    add_address(parser)
    parser.set_defaults(run=_say)


def _say(options: argparse.Namespace) -> int:
    if options.text is None:
        return _say_lines(options)
    encoding = _encoding(options)
    # The WAV header of a stream has no length, so the header of the file is written here.
    request = _request(options, "pcm16" if encoding == "wav" else encoding)
    with _sensible_numbers(), client(options) as daemon, ExitStack() as stack:
        if options.play:
            from appliance.cli.playing import Player

            reply = _receive(daemon, options.text, options, request, stack.enter_context(Player()))
        elif options.stream:
            reply = _receive(daemon, options.text, options, request)
        else:
            reply = daemon.speak(options.text, options.voice, timeout=options.timeout, **request)
    if options.out is not None:
        _write(options.out, encoding, reply)
        print_line(options.out)
    if options.table:
        print(table(reply))
    return 0


def _say_lines(options: argparse.Namespace) -> int:
    """Play each line of standard input. After a line that fails, report the failure and go on with the next
    line.
    """
    if options.out is not None or not options.play:
        raise Failure("lines of standard input can only be played: add --play; --out needs a TEXT")
    from appliance.cli.playing import Player

    request, status = _request(options, "pcm16"), 0
    with _sensible_numbers(), client(options) as daemon, Player() as player:
        for line in filter(None, map(str.strip, sys.stdin)):
            try:
                reply = _receive(daemon, line, options, request, player)
            except CallFailed as error:
                if error.unreachable:
                    raise
                print_line(f"appliance say: {error}", sys.stderr)
                status = FAILED
                continue
            if options.table:
                print(table(reply))
            player.wait()
    return status


def _receive(
    daemon: Client, text: str, options: argparse.Namespace, request: Options, player: Player | None = None
) -> Reply:
    """Receive a reply while the engine speaks it, and play it."""
    rate_hz = 0

    def each(event: Event) -> None:
        nonlocal rate_hz
        if isinstance(event, Header):
            rate_hz = event.sample_rate_hertz
        elif isinstance(event, Piece) and player is not None:
            player.play(event.data, rate_hz)

    return daemon.stream(text, options.voice, timeout=options.timeout, **request).reply(each)


def _encoding(options: argparse.Namespace) -> EncodingName:
    """Encoding of the file; PCM16 if the reply is only played."""
    if options.out is None:
        if not options.play:
            raise Failure("the audio needs a place: add --play, --out FILE, or both")
        return "pcm16"
    path: Path = options.out
    # /dev/null and pipes have no suffix.
    by_name = "wav" if path.is_char_device() or path.is_fifo() else SUFFIXES.get(path.suffix.lower())
    encoding: EncodingName | None = options.encoding or by_name
    if encoding is None:
        raise Failure(f"{options.out}: must end in one of {', '.join(SUFFIXES)}; otherwise add --encoding")
    if options.play and encoding not in ("wav", "pcm16"):
        raise Failure(f"--play plays WAV and PCM16, not {encoding}: name a .wav")
    return encoding


def _request(options: argparse.Namespace, encoding: EncodingName) -> Options:
    request: Options = {"encoding": encoding, "pronunciations": pronunciations(options)}
    for option in OPTIONS:
        if option.say:
            value = getattr(options, option.name)
            is_choice = option.kind is OptionKind.CHOICE and value
            request[option.name] = value.replace("-", "_") if is_choice else value  # type: ignore[literal-required]
    return request


@contextmanager
def _sensible_numbers() -> Iterator[None]:
    try:
        yield
    except (ValueError, OverflowError) as error:
        raise Failure(f"a number is out of range: {error}") from error


def _write(path: Path, encoding: EncodingName, reply: Reply) -> None:
    try:
        if encoding == "wav":
            from appliance.audio.wav import wav_file

            path.write_bytes(wav_file(reply.audio, reply.header.sample_rate_hertz, reply.mark))
        else:
            path.write_bytes(reply.audio)
    except OSError as error:
        raise Failure(f"{path}: {error.strerror}") from error


def table(reply: Reply) -> str:
    """Times of one reply. Wall time and first audio are the client's figures, the stages the daemon's."""
    from appliance.bench.output import aligned

    t, header = reply.timings, reply.header
    rows = [
        ("text", header.text),
        ("voice", header.voice),
        ("audio", f"{reply.audio_s:.2f} s"),
        ("wall", f"{reply.wall_s:.2f} s"),
        ("time to first audio", f"{reply.first_audio_s:.2f} s"),
        ("real-time factor", f"{reply.wall_s / reply.audio_s:.3f}" if reply.audio_s else "no audio"),
        ("NFE · seed", f"{header.nfe_steps} · {header.seed}"),
        ("segments", str(header.segments)),
        ("backend", header.backend),
        *((f"not {one.backend}", one.reason) for one in header.passed_over),
        ("waiting", f"{t.queue_ms:.0f} ms"),
    ]
    staged = t.condition_ms + t.steps_ms + t.vocoder_ms
    for name, value in (("condition", t.condition_ms), ("steps", t.steps_ms), ("vocoder", t.vocoder_ms)):
        share = f" · {value / staged:.0%}" if staged else ""
        rows.append((name, f"{value:.0f} ms{share}"))
    return aligned(rows)


def add_cancel(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("request_id", metavar="REQUEST_ID")
    add_address(parser)
    parser.set_defaults(run=_cancel)


def _cancel(options: argparse.Namespace) -> int:
    with client(options) as daemon:
        daemon.cancel(options.request_id)
    return 0


def add_queue(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    for name, about in (("list", "list waiting and sounding ones"), ("watch", "list them, then each change")):
        action = actions.add_parser(name, help=about)
        action.add_argument("channel", nargs="?", default="", help="absent: all channels")
        action.set_defaults(run=_queue_list if name == "list" else _queue_watch)
        add_address(action)
    cancel = actions.add_parser(
        "cancel", help="end all requests of a user, of a channel, or of a user on a channel"
    )
    cancel.add_argument("--user", default="", metavar="KEY")
    cancel.add_argument("--channel", default="")
    cancel.set_defaults(run=_queue_cancel)
    add_address(cancel)
    for name, about in (
        ("skip", "end the sounding request of a channel"),
        ("clear", "end the waiting requests of a channel"),
        ("pause", "stop a channel until it is resumed"),
        ("resume", "continue a channel"),
        ("moderate", "hold each request of a channel until it is approved"),
        ("unmoderate", "end the moderation of a channel"),
        ("approve", "approve held requests of a channel"),
        ("reject", "end held requests of a channel"),
    ):
        action = actions.add_parser(name, help=about)
        action.add_argument("channel")
        if name in ("approve", "reject"):
            action.add_argument("request_ids", nargs="*", metavar="REQUEST_ID", help="absent: all")
        action.set_defaults(run=_queue_verb)
        add_address(action)


def _queue_list(options: argparse.Namespace) -> int:
    with client(options) as daemon:
        queue = daemon.queue(options.channel)
    for utterance in queue.utterances:
        print_line(_format_utterance(utterance))
    for mode in ("paused", "moderated"):
        for channel in getattr(queue, mode):
            print_line(f"{mode}: {channel}")
    return 0


def _queue_cancel(options: argparse.Namespace) -> int:
    with client(options) as daemon:
        for utterance in daemon.cancel_of(user=options.user, channel=options.channel):
            print_line(_format_utterance(utterance))
    return 0


def _queue_watch(options: argparse.Namespace) -> int:
    modes: dict[str, list[str]] = {"paused": [], "moderated": []}
    with client(options) as daemon:
        for event in daemon.watch(options.channel):
            for utterance in event.utterances:
                print_line(_format_utterance(utterance))
            for mode, last_channels in modes.items():
                if (channels := list(getattr(event, mode))) != last_channels:
                    modes[mode] = channels
                    print_line(f"{mode}: {', '.join(channels) or 'none'}")
    return 0


def _queue_verb(options: argparse.Namespace) -> int:
    with client(options) as daemon:
        chosen = (options.request_ids,) if "request_ids" in options else ()
        for utterance in getattr(daemon, options.action)(options.channel, *chosen) or ():
            print_line(_format_utterance(utterance))
    return 0


def _format_utterance(utterance: Utterance) -> str:
    state = utterance.reason or UtteranceState.Name(utterance.state)
    is_timed = not utterance.reason and utterance.state != UtteranceState.HELD
    when = f"{round(utterance.starts_in_ms / 1e3, 1) + 0.0:+.1f} s" if is_timed else ""
    return f"{utterance.request_id:<14} {utterance.channel:<12} {state:<10} {when:>8}  {utterance.text}"
