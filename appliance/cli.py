"""The command line: for each command, its arguments (`_add_…`) and its function."""

from __future__ import annotations

import argparse
import io
import os
import sys
import wave
from collections.abc import Callable, Sequence
from pathlib import Path

from appliance import access, check, config
from appliance.access import Role
from appliance.bench import BenchError, compare, guard, limit, storm, trace
from appliance.bench import run as bench_run
from appliance.bench.output import aligned
from appliance.box import paths
from appliance.box.system import open_box
from appliance.bundles import ARCHIVES, BundleStore, Restart, load_on_cpu, running_folder
from appliance.client import (
    ADMIN_SOCKET,
    ENCODINGS,
    PRIORITIES,
    SPEAK_S,
    CallFailed,
    Client,
    Credentials,
    Encoding,
    Operator,
    Options,
    Reply,
    Status,
    Utterance,
    Voice,
)
from appliance.config import LOOPBACK_GRPC, SynthesisConfig
from appliance.errors import ApplianceError
from appliance.rpc.appliance_pb2 import UtteranceState, VoiceState

FAILED = 1
"""Exit status of every command but `serve` and `check`, which have their own; argparse exits with 2."""
TOKEN = "APPLIANCE_TOKEN"
SAMPLE_BYTES = 2
SUFFIXES: dict[str, Encoding] = {
    ".wav": "wav",
    ".flac": "flac",
    ".mp3": "mp3",
    ".opus": "ogg_opus",
    ".ogg": "ogg_opus",
    ".ulaw": "mulaw",
    ".pcm": "pcm16",
}
"""Encoding by suffix of the output file."""


class Failure(Exception):
    """Failure of a command; the message is one line for a person."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; returns the exit status."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        # A terminal of another encoding shows a mark where it lacks a letter.
        sys.stdout.reconfigure(errors="replace")
    options = _parser().parse_args(arguments)
    run: Callable[[argparse.Namespace], int] = options.run
    try:
        return run(options)
    except (ApplianceError, BenchError, Failure) as error:
        print(f"appliance {options.command}: {error}", file=sys.stderr)
    except CallFailed as error:
        absent = f"no daemon answers at {options.address}; start one with `appliance serve`"
        print(f"appliance {options.command}: {absent if error.unreachable else error}", file=sys.stderr)
    except KeyboardInterrupt:
        pass
    return FAILED


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="appliance", description="F5-TTS as a voice box, over gRPC.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    _add_serve(commands.add_parser("serve", help="run the daemon"))
    _add_gateway(commands.add_parser("gateway", help="HTTP for clients that speak no gRPC"))
    _add_prepare(commands.add_parser("prepare", help="build the GPU's engines before the first start"))
    _add_say(commands.add_parser("say", help="speak a text through the daemon"))
    _add_cancel(commands.add_parser("cancel", help="end a request by its id"))
    _add_queue(commands.add_parser("queue", help="what waits and sounds; skip, clear, pause, resume"))
    _add_voices(commands.add_parser("voices", help="list, add, show, remove and copy reference voices"))
    _add_tokens(commands.add_parser("tokens", help="make, list and revoke the tokens of clients, on the box"))
    _add_admin(commands.add_parser("admin", help="operate the running daemon, on the box"))
    _add_bundle(commands.add_parser("bundle", help="install another bundle, and go back, on the box"))
    _add_check(commands.add_parser("check", help="is everything well? exits with 0, or 1 or 2 if not"))
    _add_replay(commands.add_parser("replay", help="one given case on the device's engine"))
    _add_bench(commands.add_parser("bench", help="measure a running daemon"))
    return parser


# serve


def _add_serve(parser: argparse.ArgumentParser) -> None:
    _add_config(parser)
    parser.add_argument(
        "--trace", type=Path, metavar="FILE", help="record the engine's calls; written when it ends"
    )
    parser.set_defaults(run=_serve)


def _add_config(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--config", type=Path, help="YAML; without one, the defaults alone")
    parser.add_argument(
        "--set", action="append", default=[], metavar="SECTION.KEY=VALUE", help="over the file; repeatable"
    )


def _serve(options: argparse.Namespace) -> int:
    from appliance import daemon

    return daemon.main(options.config, options.set, options.trace)


# gateway


def _add_gateway(parser: argparse.ArgumentParser) -> None:
    _add_config(parser)
    parser.set_defaults(run=_gateway)


def _gateway(options: argparse.Namespace) -> int:
    from appliance.gateway import serving

    return serving.main(options.config, options.set)


# prepare


def _add_prepare(parser: argparse.ArgumentParser) -> None:
    _add_config(parser)
    parser.add_argument("--dry-run", action="store_true", help="say what is missing, and what it will take")
    parser.set_defaults(run=_prepare)


def _prepare(options: argparse.Namespace) -> int:
    from appliance.contract import bundle
    from appliance.engine import loading

    loaded = config.load(options.config, options.set)
    read = bundle.read(loaded.bundle.path).up_to(loaded.engine.longest_s)
    loading.prepare_for(read, loaded.engine, _print_line, dry_run=options.dry_run)
    return 0


def _print_line(line: str) -> None:
    print(line, flush=True)


# say


def _add_say(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("text")
    parser.add_argument("--voice", required=True)
    parser.add_argument(
        *("-o", "--out"), type=Path, required=True, metavar="FILE", help=f"its suffix: {', '.join(SUFFIXES)}"
    )
    parser.add_argument("--encoding", choices=ENCODINGS, help="absent: by the suffix of FILE")
    parser.add_argument("--stream", action="store_true", help="receive the audio while it is made")
    parser.add_argument("--nfe", type=int, help="function evaluations; absent: the daemon's")
    parser.add_argument("--min-nfe", type=int, metavar="N", help="take fewer rather than be refused")
    parser.add_argument("--seed", type=int, help="absent: drawn by the daemon")
    parser.add_argument("--rate", type=int, metavar="HZ", help="absent: the model's own")
    parser.add_argument("--speed", type=float, help="speaking rate; 1 is the voice's own")
    parser.add_argument("--text-handling", choices=("chat", "verbatim", "ssml"), help="absent: chat")
    _add_pronounce(parser)
    parser.add_argument("--segmentation", choices=("upstream", "low-latency"), help="how texts are cut")
    parser.add_argument("--priority", choices=PRIORITIES, help="how soon the first sound is due")
    parser.add_argument("--channel", help="replies of one channel play one after the other")
    parser.add_argument("--user", metavar="KEY", help="whose message it is, for rate limits")
    parser.add_argument(
        "--supersede", metavar="KEY", help="abort waiting requests of the channel with this key"
    )
    parser.add_argument(
        "--queue-timeout", type=float, metavar="S", help="wait so long rather than be refused"
    )
    parser.add_argument("--request-id", metavar="ID", help="name for `appliance cancel`")
    parser.add_argument("--timeout", type=float, default=SPEAK_S, metavar="S", help="give up (%(default)s s)")
    parser.add_argument("--table", action="store_true", help="print where the time went")
    _add_address(parser)
    parser.set_defaults(run=_say)


def _say(options: argparse.Namespace) -> int:
    encoding: Encoding | None = options.encoding or SUFFIXES.get(options.out.suffix.lower())
    if encoding is None:
        raise Failure(f"{options.out}: ends in none of {', '.join(SUFFIXES)}: say --encoding")
    request: Options = {
        # A stream's WAV header does not know its length: the file's is written here.
        "encoding": "pcm16" if encoding == "wav" else encoding,
        "rate": options.rate,
        "speed": options.speed,
        "nfe": options.nfe,
        "min_nfe": options.min_nfe,
        "seed": options.seed,
        "text_handling": options.text_handling,
        "pronunciations": _pronunciations(options),
        "segmentation": options.segmentation and options.segmentation.replace("-", "_"),
        "priority": options.priority,
        "channel": options.channel,
        "user": options.user,
        "supersede": options.supersede,
        "queue_timeout": options.queue_timeout,
        "request_id": options.request_id,
    }
    try:
        with _client(options) as client:
            if options.stream:
                reply = client.stream(options.text, options.voice, timeout=options.timeout, **request).reply()
            else:
                reply = client.speak(options.text, options.voice, timeout=options.timeout, **request)
    except (ValueError, OverflowError) as error:
        raise Failure(f"a number is out of range: {error}") from error
    try:
        if encoding == "wav":
            _write_wav(options.out, reply.audio, reply.header.sample_rate_hertz)
        else:
            options.out.write_bytes(reply.audio)
    except OSError as error:
        raise Failure(f"{options.out}: {error.strerror}") from error
    print(options.out)
    if options.table:
        print(table(reply))
    return 0


def _write_wav(path: Path, pcm: bytes, rate_hz: int) -> None:
    with path.open("wb") as stream, wave.open(stream, "wb") as out:
        out.setnchannels(1)
        out.setsampwidth(SAMPLE_BYTES)
        out.setframerate(rate_hz)
        out.writeframes(pcm)


def table(reply: Reply) -> str:
    """Format one reply: wall time and first audio are the client's, the stages the daemon's."""
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


# cancel


def _add_cancel(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("request_id", metavar="REQUEST_ID")
    _add_address(parser)
    parser.set_defaults(run=_cancel)


def _cancel(options: argparse.Namespace) -> int:
    with _client(options) as client:
        client.cancel(options.request_id)
    return 0


# queue


def _add_queue(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    for name, about in (("list", "what waits and sounds"), ("watch", "the same, and then each change")):
        action = actions.add_parser(name, help=about)
        action.add_argument("channel", nargs="?", default="", help="absent: all channels")
        action.set_defaults(run=_queue_list if name == "list" else _queue_watch)
        _add_address(action)
    cancel = actions.add_parser(
        "cancel", help="end all requests of a user, of a channel, or of one on the other"
    )
    cancel.add_argument("--user", default="", metavar="KEY")
    cancel.add_argument("--channel", default="")
    cancel.set_defaults(run=_queue_cancel)
    _add_address(cancel)
    for name, about in (
        ("skip", "end what sounds"),
        ("clear", "end what waits"),
        ("pause", "hold a channel"),
        ("resume", "let it go on"),
    ):
        action = actions.add_parser(name, help=about)
        action.add_argument("channel")
        action.set_defaults(run=_queue_verb)
        _add_address(action)


def _queue_list(options: argparse.Namespace) -> int:
    with _client(options) as client:
        queue = client.queue(options.channel)
    for utterance in queue.utterances:
        print(_format_utterance(utterance))
    for channel in queue.paused:
        print(f"paused: {channel}")
    return 0


def _queue_cancel(options: argparse.Namespace) -> int:
    with _client(options) as client:
        for utterance in client.cancel_of(user=options.user, channel=options.channel):
            print(_format_utterance(utterance))
    return 0


def _queue_watch(options: argparse.Namespace) -> int:
    paused: list[str] = []
    with _client(options) as client:
        for event in client.watch(options.channel):
            for utterance in event.utterances:
                print(_format_utterance(utterance), flush=True)
            if list(event.paused) != paused:
                paused = list(event.paused)
                print(f"paused: {', '.join(paused) or 'none'}", flush=True)
    return 0


def _queue_verb(options: argparse.Namespace) -> int:
    with _client(options) as client:
        for utterance in getattr(client, options.action)(options.channel) or ():
            print(_format_utterance(utterance))
    return 0


def _format_utterance(utterance: Utterance) -> str:
    state = utterance.reason or UtteranceState.Name(utterance.state)
    when = f"{round(utterance.starts_in_ms / 1e3, 1) + 0.0:+.1f} s" if not utterance.reason else ""
    return f"{utterance.request_id:<14} {utterance.channel:<12} {state:<10} {when:>8}  {utterance.text}"


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
    add.add_argument("--display-name", default="", help="in any script")
    _add_pronounce(add)
    add.add_argument("--validate-only", action="store_true", help="check everything, store nothing")
    add.set_defaults(run=_voices_add)
    update = actions.add_parser("update", help="change what is not its sound")
    update.add_argument("name")
    update.add_argument("--display-name", help="in any script")
    _add_pronounce(update)
    update.add_argument("--forget", action="append", default=[], metavar="WORD", help="say it as it is spelt")
    update.set_defaults(run=_voices_update)
    show = actions.add_parser("show", help="everything that is known of a voice")
    show.add_argument("name")
    show.set_defaults(run=_voices_show)
    remove = actions.add_parser("remove", help="forget a voice")
    remove.add_argument("name")
    remove.set_defaults(run=_voices_remove)
    for action in (listing, add, update, show, remove):
        _add_address(action)
    sync = actions.add_parser("sync", help="copy the voices of this box to others, by content")
    sync.add_argument("boxes", nargs="+", metavar="BOX", help="host:port or unix:PATH of its daemon")
    sync.add_argument("--folder", type=Path, help="absent: voices.folder of the configuration")
    sync.add_argument("--remove", action="store_true", help="remove what this box does not have")
    sync.add_argument("--dry-run", action="store_true", help="print what would be done")
    _add_config(sync)
    _add_credentials(sync)
    sync.set_defaults(run=_voices_sync)


def _voices_list(options: argparse.Namespace) -> int:
    with _client(options) as client:
        for voice in client.voices():
            about = voice.problem or " · ".join(filter(None, (voice.display_name, voice.transcript)))
            print(f"{voice.name:<24}  {voice.duration_s:5.1f} s  {about}")
    return 0


def _voices_add(options: argparse.Namespace) -> int:
    try:
        audio = options.audio.read_bytes()
    except OSError as error:
        raise Failure(f"{options.audio}: {error.strerror}") from error
    with _client(options) as client:
        voice = client.add_voice(
            options.name,
            audio,
            options.transcript,
            consent_note=options.consent,
            display_name=options.display_name,
            pronunciations=_pronunciations(options),
            validate_only=options.validate_only,
        )
    _print_voice(voice)
    return 0


def _voices_update(options: argparse.Namespace) -> int:
    with _client(options) as client:
        stored = client.voice(options.name).pronunciations
        words = {word: spoken for word, spoken in stored.items() if word not in options.forget}
        words.update(_pronunciations(options))
        _print_voice(
            client.update_voice(options.name, display_name=options.display_name, pronunciations=words)
        )
    return 0


def _add_pronounce(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--pronounce", action="append", default=[], metavar="WORD=SAID", help="say a name right; repeatable"
    )


def _pronunciations(options: argparse.Namespace) -> dict[str, str]:
    words = {}
    for pair in options.pronounce:
        word, equals, spoken = pair.partition("=")
        if not equals:
            raise Failure(f"--pronounce {pair}: must be WORD=SAID")
        words[word] = spoken
    return words


def _voices_show(options: argparse.Namespace) -> int:
    with _client(options) as client:
        _print_voice(client.voice(options.name))
    return 0


def _voices_remove(options: argparse.Namespace) -> int:
    with _client(options) as client:
        client.remove_voice(options.name)
    return 0


def _voices_sync(options: argparse.Namespace) -> int:
    from appliance import replicate

    folder = options.folder or config.load(options.config, options.set).voices.folder
    source = replicate.read_source(folder)
    if not source.voices:
        raise Failure(f"{folder} holds no voice that can be used")
    rows = [("here", name, f"damaged: {problem}") for name, problem in source.damaged.items()]
    failed = bool(rows)
    for address in options.boxes:
        try:
            with Client(address, _credentials(options)) as box:
                steps = replicate.plan(source, box.voices(), remove=options.remove)
                if options.dry_run:
                    rows += [(address, step.name, step.kind) for step in steps]
                    continue
                for step, problem in replicate.apply(steps, source, box):
                    failed = failed or bool(problem)
                    rows.append((address, step.name, f"{step.kind}: {problem}" if problem else step.kind))
        except CallFailed as error:
            failed = True
            rows.append((address, "-", "no daemon answers" if error.unreachable else str(error)))
    for address, name, state in rows:
        print(f"{address:<24}  {name:<24}  {state}")
    return FAILED if failed else 0


def _print_voice(voice: Voice) -> None:
    for field in voice.DESCRIPTOR.fields:
        value = getattr(voice, field.name)
        if field.name == "warnings":
            value = "; ".join(value)
        elif field.name == "pronunciations":
            value = "; ".join(f"{word}={said}" for word, said in sorted(value.items()))
        elif field.name == "state":
            value = VoiceState.Name(value)
        print(f"{field.name:<14} {value}")


# tokens


def _add_tokens(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    making = actions.add_parser(
        "add", help="make one and print it; it is not kept, so it cannot be shown again"
    )
    making.add_argument("name", help="whose it is")
    making.add_argument(
        "--role", action="append", choices=[role.value for role in Role], help="repeatable; absent: speak"
    )
    listing = actions.add_parser("list", help="names, roles and age")
    revoking = actions.add_parser("revoke", help="refuse it from the next call on")
    revoking.add_argument("name")
    for action in (making, listing, revoking):
        action.add_argument("--file", type=Path, help="absent: server.tokens of the configuration")
        _add_config(action)
    parser.set_defaults(run=_tokens)


def _tokens(options: argparse.Namespace) -> int:
    path = options.file
    if path is None:
        configured = config.load(options.config, options.set).server.tokens
        if not configured:
            raise Failure("server.tokens is empty: name a file there, or with --file")
        path = Path(configured)
    if options.action == "add":
        print(access.add(path, options.name, map(Role, options.role or ["speak"])))
    elif options.action == "revoke":
        access.revoke(path, options.name)
    else:
        for token in access.listed(path):
            roles = ", ".join(role.value for role in token.roles)
            print(f"{token.name:<24}  {roles:<24}  made {token.created}")
    return 0


# admin


def _add_admin(parser: argparse.ArgumentParser) -> None:
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")
    level = verbs.add_parser("log-level", help="until the next reload or start")
    level.add_argument("level", choices=("debug", "info", "warning", "error"))
    swap = verbs.add_parser("swap", help="speak from another bundle; no stream is dropped")
    swap.add_argument("bundle", type=Path)
    others = (
        ("status", "what it is and does"),
        ("drain", "finish what is under way and end"),
        ("reload", "read the configuration again"),
        ("self-test", "let the engine speak a silence"),
    )
    for command in (level, swap, *(verbs.add_parser(verb, help=about) for verb, about in others)):
        command.add_argument(
            "--socket", dest="address", default=ADMIN_SOCKET, help="its Unix socket (%(default)s)"
        )
    parser.set_defaults(run=_admin)


def _admin(options: argparse.Namespace) -> int:
    with Operator(options.address) as operator:
        if options.verb == "status":
            _print_status(operator.status())
        elif options.verb == "drain":
            operator.drain()
        elif options.verb == "reload":
            if sections := operator.reload():
                print(f"only a restart takes over the changes in {', '.join(sections)}")
        elif options.verb == "self-test":
            print(f"{operator.self_test():.3f} s")
        elif options.verb == "log-level":
            operator.log_level(options.level)
        else:
            _print_status(operator.swap(str(options.bundle.absolute())))
    return 0


def _print_status(status: Status) -> None:
    for field in status.DESCRIPTOR.fields:
        value = getattr(status, field.name)
        shown = ", ".join(value) if field.name == "paused" else value
        if field.name == "passed_over":
            shown = "; ".join(f"{one.backend}: {one.reason}" for one in value)
        print(f"{field.name:<11} {shown:.0f}" if isinstance(value, float) else f"{field.name:<11} {shown}")


# bundle


def _add_bundle(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    install = actions.add_parser("install", help="verify a bundle, load it, and put it in use")
    install.add_argument("source", type=Path, metavar="PATH", help=f"a bundle's folder, or {ARCHIVES} of one")
    back = actions.add_parser("back", help="put the bundle before in use again")
    for action in (install, back):
        action.add_argument(
            "--restart", action="store_true", help="restart the daemon; if it does not speak then, go back"
        )
    for action in (install, back, actions.add_parser("list", help="which are there")):
        _add_config(action)
    parser.set_defaults(run=_bundle)


def _bundle(options: argparse.Namespace) -> int:
    installed = Path(paths.CONFIG)
    path = options.config or (installed if installed.is_file() else None)
    loaded = config.load(path, options.set)
    store = BundleStore(loaded.bundle.path, _print_line)
    if options.action == "list":
        for stored in store.stored():
            manifest = stored.manifest
            about = f"{manifest.family} {manifest.precision}" if manifest else stored.problem
            print(f"{stored.use:<7}  {stored.folder}  {about}")
        return 0
    prove = Restart(loaded, open_box(*_sysroot()).tools) if options.restart else None
    before = running_folder(loaded)
    if options.action == "install":
        new = store.install(
            options.source, lambda read: load_on_cpu(read, loaded.engine), prove=prove, running=before
        )
    else:
        new = store.back(prove=prove)
    print(f"in use: {new}" + (", and it speaks" if prove else ""))
    if not prove and before != new:
        print("the daemon speaks from it after: sudo systemctl restart f5-appliance")
    return 0


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
    from appliance.contract import bundle
    from appliance.engine import replay

    nfe = SynthesisConfig.nfe if options.nfe is None else options.nfe
    try:
        replay.replay_file(bundle.read(options.bundle), options.case, nfe, options.out)
    except OSError as error:
        raise Failure(f"{options.out}: {error.strerror}") from error
    print(options.out)
    return 0


# bench


def _add_bench(parser: argparse.ArgumentParser) -> None:
    measures = parser.add_subparsers(dest="measure", required=True, metavar="MEASURE")
    command = measures.add_parser("storm", help="more requests than it can serve, on a schedule of their own")
    storm.add_arguments(command)
    command.add_argument("--address", default=LOOPBACK_GRPC, help="host:port of the daemon (%(default)s)")
    command = measures.add_parser("run", help="replies one at a time: how fast, and where the time goes")
    bench_run.add_arguments(command)
    _add_address(command)
    command.set_defaults(run=_bench_run)
    command = measures.add_parser("compare", help="two bundles, configurations or versions in turns")
    _add_config(command)
    compare.add_arguments(command)
    command.set_defaults(run=_bench_compare)
    command = measures.add_parser("trace", help="each call of the engine, and why each request waited")
    _add_config(command)
    trace.add_arguments(command)
    command.set_defaults(run=trace.run)
    command = measures.add_parser("limit", help="how fast a bundle could be on a device, and what it reaches")
    limit.add_arguments(command)
    command = measures.add_parser("guard", help="is it as fast as it was? exits with 0, or 1 or 2 if not")
    _add_config(command)
    guard.add_arguments(command)
    command.set_defaults(run=_bench_guard)
    command = measures.add_parser("history", help="the guard's measurements as one HTML page")
    command.add_argument("--html", type=Path, required=True, metavar="FILE")
    command.set_defaults(run=_bench_history)


def _bench_guard(options: argparse.Namespace) -> int:
    try:
        loaded = config.load(options.config, options.set)
    except ApplianceError as error:
        print(f"appliance bench guard: {error}", file=sys.stderr)
        return guard.BROKEN
    root, tools = _sysroot()
    return guard.run(loaded, open_box(root or str(loaded.device.sysroot), tools), options)


def _bench_history(options: argparse.Namespace) -> int:
    try:
        guard.write_page(open_box(*_sysroot()), options.html)
    except OSError as error:
        raise Failure(f"{options.html}: {error.strerror}") from error
    print(options.html)
    return 0


def _bench_compare(options: argparse.Namespace) -> int:
    return compare.run(options, open_box(*_sysroot()))


def _bench_run(options: argparse.Namespace) -> int:
    with _client(options) as client:
        return bench_run.run(client, options, open_box(*_sysroot()))


def _sysroot() -> tuple[str, str]:
    """Folders of tests in place of / and of the system's tools."""
    return os.environ.get("F5_SYSROOT", ""), os.environ.get("F5_TOOLS", "")


def _add_address(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--address", default=LOOPBACK_GRPC, help="host:port or unix:PATH of the daemon (%(default)s)"
    )
    _add_credentials(parser)


def _add_credentials(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--authority", type=Path, metavar="PEM", help="speak TLS with a daemon of this certificate"
    )
    parser.add_argument("--token-file", type=Path, metavar="FILE", help=f"absent: the variable {TOKEN}")
    parser.add_argument("--certificate", type=Path, metavar="PEM", help="of one's own, if it asks for one")
    parser.add_argument("--key", type=Path, metavar="PEM", help="of that certificate")


def _client(options: argparse.Namespace) -> Client:
    return Client(options.address, _credentials(options))


def _credentials(options: argparse.Namespace) -> Credentials:
    token = _read_file(options.token_file).decode("ascii", "replace") or os.environ.get(TOKEN, "")
    return Credentials(
        _read_file(options.authority), token.strip(), _read_file(options.certificate), _read_file(options.key)
    )


def _read_file(path: Path | None) -> bytes:
    try:
        return b"" if path is None else path.read_bytes()
    except OSError as error:
        raise Failure(f"{path}: {error.strerror}") from error
