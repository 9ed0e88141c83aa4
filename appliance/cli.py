"""The command line: serve · say · voices · check · replay."""

from __future__ import annotations

import argparse
import sys
import time
import wave
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import grpc

from appliance import check
from appliance.config import LOOPBACK_GRPC, SynthesisConfig
from appliance.errors import ApplianceError
from appliance.rpc import appliance_pb2 as pb
from appliance.rpc import appliance_pb2_grpc

FAILED = 1
"""Exit status of every command but `serve` and `check`, which have their own; argparse exits with 2."""
REACH_S = 5.0
UNLIMITED = (("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1))
SAMPLE_BYTES = 2


class Failure(Exception):
    """What a command could not do; its message is one line for a person."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; returns the exit status."""
    options = _parser().parse_args(arguments)
    run: Callable[[argparse.Namespace], int] = options.run
    try:
        return run(options)
    except (ApplianceError, Failure) as error:
        print(f"appliance {options.command}: {error}", file=sys.stderr)
    except grpc.RpcError as error:
        print(f"appliance {options.command}: {_told(error, options)}", file=sys.stderr)
    except KeyboardInterrupt:
        pass
    return FAILED


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="appliance", description="F5-TTS as a voice box, over gRPC.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    _add_serve(commands.add_parser("serve", help="run the daemon"))
    _add_say(commands.add_parser("say", help="speak a text through the daemon"))
    _add_voices(commands.add_parser("voices", help="list, add, show and remove reference voices"))
    _add_check(commands.add_parser("check", help="is everything well? exits with 0, or 1 or 2 if not"))
    _add_replay(commands.add_parser("replay", help="one given case on the device's engine"))
    return parser


# serve


def _add_serve(parser: argparse.ArgumentParser) -> None:
    _add_config(parser)
    parser.set_defaults(run=_serve)


def _add_config(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--config", type=Path, help="YAML; without one, the defaults alone")
    parser.add_argument(
        "--set", action="append", default=[], metavar="SECTION.KEY=VALUE", help="over the file; repeatable"
    )


def _serve(options: argparse.Namespace) -> int:
    from appliance import daemon

    return daemon.main(options.config, options.set)


# say


@dataclass(frozen=True)
class Spoken:
    """What came back, as this end saw it."""

    pcm: bytes
    header: pb.Header
    timings: pb.Timings
    wall_s: float
    first_audio_s: float


def _add_say(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("text")
    parser.add_argument("--voice", required=True)
    parser.add_argument("--out", type=Path, required=True, metavar="FILE.wav")
    parser.add_argument("--stream", action="store_true", help="receive the audio while it is made")
    parser.add_argument("--nfe", type=int, help="function evaluations; absent: the daemon's")
    parser.add_argument("--seed", type=int, help="absent: drawn by the daemon")
    parser.add_argument("--rate", type=int, default=0, metavar="HZ", help="absent: the model's own")
    parser.add_argument("--speed", type=float, default=0.0, help="speaking rate; 1 is the voice's own")
    parser.add_argument("--segmentation", choices=("upstream", "low-latency"), help="how texts are cut")
    parser.add_argument("--table", action="store_true", help="print where the time went")
    _add_address(parser)
    parser.set_defaults(run=_say)


def _say(options: argparse.Namespace) -> int:
    request = _request(options)
    with _channel(options) as channel:
        stub = appliance_pb2_grpc.SynthesizerStub(channel)
        spoken = _say_stream(stub, request) if options.stream else _say_unary(stub, request)
    try:
        _write_wav(options.out, spoken.pcm, spoken.header.sample_rate_hertz)
    except OSError as error:
        raise Failure(f"{options.out}: {error.strerror}") from error
    print(options.out)
    if options.table:
        print(table(spoken))
    return 0


def _request(options: argparse.Namespace) -> pb.SynthesizeRequest:
    request = pb.SynthesizeRequest(text=options.text, voice=options.voice)
    try:
        request.audio_config.encoding = pb.PCM16
        request.audio_config.sample_rate_hertz = options.rate
        request.audio_config.speaking_rate = options.speed
        if options.nfe is not None:
            request.nfe_steps = options.nfe
        if options.seed is not None:
            request.seed = options.seed
    except ValueError as error:
        raise Failure(f"a number is out of range: {error}") from error
    if options.segmentation:
        request.segmentation = pb.UPSTREAM if options.segmentation == "upstream" else pb.LOW_LATENCY
    return request


def _say_unary(stub: appliance_pb2_grpc.SynthesizerStub, request: pb.SynthesizeRequest) -> Spoken:
    begun = time.monotonic()
    reply = stub.Synthesize(request)
    wall_s = time.monotonic() - begun
    return Spoken(reply.audio, reply.header, reply.timings, wall_s, wall_s)


def _say_stream(stub: appliance_pb2_grpc.SynthesizerStub, request: pb.SynthesizeRequest) -> Spoken:
    begun = time.monotonic()
    header, timings, first_audio_s = pb.Header(), pb.Timings(), 0.0
    parts: list[bytes] = []
    for message in stub.StreamSynthesize(request):
        kind = message.WhichOneof("message")
        if kind == "header":
            header = message.header
        elif kind == "audio":
            first_audio_s = first_audio_s or time.monotonic() - begun
            parts.append(message.audio.data)
        elif kind == "end":
            timings = message.end.timings
    return Spoken(b"".join(parts), header, timings, time.monotonic() - begun, first_audio_s)


def _write_wav(path: Path, pcm: bytes, rate_hz: int) -> None:
    with path.open("wb") as stream, wave.open(stream, "wb") as out:
        out.setnchannels(1)
        out.setsampwidth(SAMPLE_BYTES)
        out.setframerate(rate_hz)
        out.writeframes(pcm)


def table(spoken: Spoken) -> str:
    """One reply in figures: wall and first audio as this end saw them, the stages as the daemon did."""
    t, header = spoken.timings, spoken.header
    audio_s = len(spoken.pcm) / SAMPLE_BYTES / header.sample_rate_hertz if header.sample_rate_hertz else 0.0
    rows = [
        ("text", header.text),
        ("voice", header.voice),
        ("audio", f"{audio_s:.2f} s"),
        ("wall", f"{spoken.wall_s:.2f} s"),
        ("time to first audio", f"{spoken.first_audio_s:.2f} s"),
        ("real-time factor", f"{spoken.wall_s / audio_s:.3f}" if audio_s else "no audio"),
        ("NFE · seed", f"{header.nfe_steps} · {header.seed}"),
        ("segments", str(header.segments)),
        ("backend", header.backend),
        ("waiting", f"{t.queue_ms:.0f} ms"),
    ]
    staged = t.condition_ms + t.steps_ms + t.vocoder_ms
    for name, value in (("condition", t.condition_ms), ("steps", t.steps_ms), ("vocoder", t.vocoder_ms)):
        share = f" · {value / staged:.0%}" if staged else ""
        rows.append((name, f"{value:.0f} ms{share}"))
    width = max(len(name) for name, _ in rows)
    return "\n".join(f"{name:<{width}}  {value}" for name, value in rows)


# voices


def _add_voices(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    listing = actions.add_parser("list", help="all voices")
    listing.set_defaults(run=_voices_list)
    add = actions.add_parser("add", help="register a voice")
    add.add_argument("name")
    add.add_argument("audio", type=Path, help="WAV, FLAC, Ogg or MP3; at most 12 s of speech")
    add.add_argument("--transcript", required=True, help="exactly what is said in it")
    add.add_argument("--consent", default="", help="who agreed that this voice may be used")
    add.add_argument("--validate-only", action="store_true", help="check everything, store nothing")
    add.set_defaults(run=_voices_add)
    show = actions.add_parser("show", help="everything that is known of a voice")
    show.add_argument("name")
    show.set_defaults(run=_voices_show)
    remove = actions.add_parser("remove", help="forget a voice")
    remove.add_argument("name")
    remove.set_defaults(run=_voices_remove)
    for action in (listing, add, show, remove):
        _add_address(action)


def _voices_list(options: argparse.Namespace) -> int:
    token = ""
    with _channel(options) as channel:
        stub = appliance_pb2_grpc.VoicesStub(channel)
        while True:
            page = stub.ListVoices(pb.ListVoicesRequest(page_token=token), timeout=REACH_S)
            for voice in page.voices:
                print(f"{voice.name:<24}  {voice.duration_s:5.1f} s  {voice.transcript}")
            token = page.next_page_token
            if not token:
                return 0


def _voices_add(options: argparse.Namespace) -> int:
    try:
        audio = options.audio.read_bytes()
    except OSError as error:
        raise Failure(f"{options.audio}: {error.strerror}") from error
    request = pb.CreateVoiceRequest(
        name=options.name,
        audio=audio,
        transcript=options.transcript,
        consent_note=options.consent,
        validate_only=options.validate_only,
    )
    with _channel(options) as channel:
        _print_voice(appliance_pb2_grpc.VoicesStub(channel).CreateVoice(request))
    return 0


def _voices_show(options: argparse.Namespace) -> int:
    with _channel(options) as channel:
        stub = appliance_pb2_grpc.VoicesStub(channel)
        _print_voice(stub.GetVoice(pb.GetVoiceRequest(name=options.name), timeout=REACH_S))
    return 0


def _voices_remove(options: argparse.Namespace) -> int:
    with _channel(options) as channel:
        stub = appliance_pb2_grpc.VoicesStub(channel)
        stub.DeleteVoice(pb.DeleteVoiceRequest(name=options.name), timeout=REACH_S)
    return 0


def _print_voice(voice: pb.Voice) -> None:
    for field in voice.DESCRIPTOR.fields:
        value = getattr(voice, field.name)
        print(f"{field.name:<13} {'; '.join(value) if field.name == 'warnings' else value}")


# check


def _add_check(parser: argparse.ArgumentParser) -> None:
    _add_config(parser)
    check.add_arguments(parser)


# replay


def _add_replay(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("bundle", type=Path)
    parser.add_argument("case", type=Path, metavar="CASE.npz")
    parser.add_argument("--nfe", type=int, help="function evaluations; absent: the configuration's default")
    parser.add_argument("--out", type=Path, required=True, metavar="OUT.npz")
    parser.set_defaults(run=_replay)


def _replay(options: argparse.Namespace) -> int:
    from appliance import daemon

    nfe = SynthesisConfig.nfe if options.nfe is None else options.nfe
    try:
        daemon.replay_case(options.bundle, options.case, nfe, options.out)
    except OSError as error:
        raise Failure(f"{options.out}: {error.strerror}") from error
    print(options.out)
    return 0


# Reaching the daemon.


def _add_address(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--address", default=LOOPBACK_GRPC, help="host:port or unix:PATH of the daemon (%(default)s)"
    )


def _channel(options: argparse.Namespace) -> grpc.Channel:
    return grpc.insecure_channel(options.address, options=UNLIMITED)


def _told(error: grpc.RpcError, options: argparse.Namespace) -> str:
    status = _status(error)
    if status.code() is grpc.StatusCode.UNAVAILABLE and "connect" in str(status.details()):
        return f"no daemon answers at {options.address}; start one with `appliance serve`"
    return f"{status.details()} ({status.code().name})"


def _status(error: grpc.RpcError) -> grpc.Call:
    """What a stub raises is the call itself, though its declared type does not say so."""
    return cast("grpc.Call", error)
