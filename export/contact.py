"""First contact with known weights: fetch, export, speak through a daemon, and write one JSON of the results.

Each stage writes the JSON again. It shows where a killed run ended, and has the results of earlier stages if
a later one fails.
"""

from __future__ import annotations

import datetime
import getpass
import json
import os
import platform
import signal
import socket
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import soundfile
import yaml

from appliance.bench.machine import memory_mb, processor, versions
from appliance.box.support.redact import replacing
from appliance.client import CallFailed, Client, Reply
from appliance.contract import bundle as contract
from appliance.contract.tokens import BY_ESPEAK
from appliance.durable import replace_file
from appliance.engine.cases import FEMALE, VOICES
from appliance.fields import to_plain
from appliance.text.languages import LANGUAGES
from appliance.text.tokens.emilia.phones import Espeak
from export import fetch, hearing
from export.sources.licence import read_record

LINES = 20
TEXTS = Path(__file__).with_name("lines.yaml")
VOICE = "contact"
REASON = "first contact: written even if bounds are broken"
"""Value of `accepted_by`. A bundle that breaks bounds is written too, because the record needs its parity and
its speech.
"""
PATIENCE_S = 1_800.0
"""Timeout of a start and of one line, in seconds: a Base on a slow core takes a minute for ten seconds of
speech.
"""
PACKAGES = (
    "f5-appliance torch onnx onnxscript onnxruntime onnxruntime-gpu numpy safetensors huggingface-hub grpcio "
    "soundfile soxr pypinyin rjieba f5-tts vocos moonshine-voice jiwer"
)
COMMON_NAMES = frozenset(("root", "user", "ubuntu", "debian", "localhost", "audio", "voice", "demo"))
"""Common names of users and hosts, and words of a record. They identify nobody, so they are not removed."""
Make = Callable[[Sequence[str]], object]
"""Function that runs `python -m export` with these arguments."""


class ContactFailed(RuntimeError):
    """A stage failed, or the weights break a bound. The record says so, too."""


@dataclass(frozen=True)
class Visit:
    """Options of a first contact with weights."""

    name: str
    out: Path
    fetched: Path
    """Folder of `fetch`."""
    options: Sequence[str] = ()
    """Further options of `bundle`."""
    lines: Path | None = None
    """File with a text on each line; None: the lines of TEXTS."""
    voice: tuple[Path, str] | None = None
    """Recording that the lines follow, and its words; None: FEMALE. The record has its length, level and
    hash.
    """


def meet(visit: Visit, make: Make) -> None:
    """Write the record of a visit.

    Raises ContactFailed if a stage fails or a bound is broken, and FetchError for unknown weights.
    """
    lines = lines_of(fetch.row_of(visit.name).languages, visit.lines)
    bundle = visit.out / "bundle"
    if bundle.exists():
        raise ContactFailed(f"{bundle} exists; remove it, or pass another --out")
    visit.out.mkdir(parents=True, exist_ok=True)
    record = Record(visit)
    with suppress(ContactFailed):  # a stage records its error
        _fetch_and_export(record, visit, bundle, make)
        _speak(record, visit, bundle, lines)
        with record.stage("judge"):
            record.content["words"] = judged(record.content["lines"], visit.out)
    print(f"{record.path}: contains no name, path or address of yours; read it, and attach it to an issue")
    if record.findings:
        raise ContactFailed(f"{'; '.join(record.findings)}: details: {record.path}")


def lines_of(languages: Sequence[str], own: Path | None = None) -> list[tuple[str, str]]:
    """(language, text) of twenty lines, in at most two languages. Raises ContactFailed if there are none."""
    if own is not None:
        texts = [text for text in map(str.strip, own.read_text("utf-8").splitlines()) if text]
        if not texts:
            raise ContactFailed(f"{own}: contains no text")
        return [(languages[0], text) for text in texts]
    lines: dict[str, list[str]] = yaml.safe_load(TEXTS.read_text("utf-8"))
    codes = [language for language in languages if language in lines][:2]
    if not codes:
        there = f"no lines in {', '.join(languages)} are known, only in {', '.join(lines)}"
        raise ContactFailed(f"{there}; pass --lines FILE, with a text on each line")
    return [(code, text) for code in codes for text in lines[code][: LINES // len(codes)]]


class Record:
    """Record of a visit, which each stage writes to a JSON file."""

    def __init__(self, visit: Visit) -> None:
        self.path = visit.out / f"{visit.name}.json"
        own = [visit.voice[0].name] if visit.voice else []
        self._clean = impersonal({visit.out: "OUT", visit.fetched: "WEIGHTS"}, own)
        self.findings: list[str] = []
        """Failed stages and broken bounds."""
        self.content: dict[str, Any] = {
            **{"format": 2, "name": visit.name, "date": str(datetime.date.today())},
            **{"asked": list(visit.options), "machine": machine(), "versions": versions(PACKAGES.split())},
            **{"stages": {}, "findings": self.findings},
        }

    def write(self) -> None:
        text = json.dumps(self._clean(self.content), indent=1, ensure_ascii=False)
        replace_file(self.path, f"{text}\n".encode())

    @contextmanager
    def stage(self, name: str) -> Iterator[dict[str, Any]]:
        """Time a stage, whose dictionary the block may fill.

        Raises ContactFailed for an error in the block.
        """
        self.content["stages"][name] = stage = dict[str, Any](status="running")
        self.write()
        print(f"first contact: {name}", file=sys.stderr)
        begun, used = time.monotonic(), time.process_time()
        try:
            yield stage
            stage["status"] = "done"
        except BaseException as error:
            text = str(error) or type(error).__name__
            at = [f"{f.filename}:{f.lineno} {f.name}" for f in traceback.extract_tb(error.__traceback__)[-3:]]
            stage |= {"status": "failed", "error": f"{type(error).__name__}: {text}", "at": at}
            self.findings.append(f"{name}: {text}")
            if isinstance(error, Exception):
                raise ContactFailed(text) from error
            raise  # Ctrl-C
        finally:
            wall_s, cpu_s = time.monotonic() - begun, time.process_time() - used
            peak_mb = round(memory_mb(os.getpid()).get("peak", 0.0))
            stage |= {"wall_s": round(wall_s, 2), "cpu_s": round(cpu_s, 2), "peak_mb": peak_mb}
            self.write()


def _fetch_and_export(record: Record, visit: Visit, bundle: Path, make: Make) -> None:
    """The stages "fetch" and "export". Records licence, hashes, manifest and findings."""
    with record.stage("fetch"):
        download = fetch.fetch(visit.name, visit.fetched)
        folders = (path if path.is_dir() else path.parent for path in (download.checkpoint, download.vocoder))
        hashes = {folder.name: dict(terms.files) for folder in folders if (terms := read_record(folder))}
        record.content |= {"licence": asdict(download.licence), "fetched": hashes}
    with record.stage("export"):
        options = [str(word) for option in download.options.items() for word in option]
        if visit.voice is not None:
            options += ["--recording", str(visit.voice[0]), "--transcript", visit.voice[1]]
        make(["bundle", *options, *visit.options, "--accept", REASON, "--out", str(bundle)])
        manifest = contract.read(bundle, verify=False).manifest
        record.content["bundle"] = to_plain(manifest)
        if manifest.text.tokenizer in BY_ESPEAK:
            record.content["versions"]["espeak-ng"] = Espeak().version
        record.findings += [f"parity: {line}" for line in manifest.parity.get("failed", [])]
        if "accepted_by" in (evidence := manifest.evidence):
            record.findings.append(f"evidence: {evidence['verdict']}, losses {evidence['losses']}")


def _speak(record: Record, visit: Visit, bundle: Path, lines: Sequence[tuple[str, str]]) -> None:
    """The stages "start", "voice" and "speak": a daemon with the bundle speaks `lines`."""
    sound, transcript = (VOICES.joinpath(f"{FEMALE}.{suffix}") for suffix in ("wav", "txt"))
    words = transcript.read_text("utf-8").strip()
    if visit.voice is not None:
        sound, words = visit.voice
    with tempfile.TemporaryDirectory(prefix="contact-") as folder, ExitStack() as stack:
        with record.stage("start"):
            client, process = stack.enter_context(serving(bundle.absolute(), Path(folder)))
        with record.stage("voice"):
            voice = client.add_voice(VOICE, sound.read_bytes(), words, timeout=PATIENCE_S)
            name = "own" if visit.voice else f"{FEMALE}, of the demo voice"
            sizes = {"seconds": round(voice.duration_s, 2), "rms": round(voice.rms, 4)}
            record.content["voice"] = {"name": name, "sha256": voice.sha256, **sizes}
        with record.stage("speak") as about:
            _say_all(record, visit.out, client, lines)
            about["daemon_peak_mb"] = round(memory_mb(process).get("peak", 0.0))


@contextmanager
def serving(bundle: Path, folder: Path) -> Iterator[tuple[Client, int]]:
    """Run `appliance serve` with its socket, voices, caches and log in a folder. Yields a client, and its
    process.

    Raises ContactFailed with the end of its log if it does not become ready.
    """
    log, address = folder / "daemon.log", folder / "grpc.sock"
    settings = {
        **{"bundle.path": bundle, "engine.cache": folder / "engines"},
        **{"voices.folder": folder / "voices", "voices.cache": folder / "cache"},
        **{"server.listen": "127.0.0.1:0", "server.socket": address, "server.metrics": ""},
        "audio.loudness_lufs": "null",  # the levels are the model's
    }
    options = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
    command = [sys.executable, "-m", "appliance", "serve", *options]
    with log.open("wb") as stream, subprocess.Popen(command, stdout=stream, stderr=stream) as process:
        # The daemon must not outlive a command that is ended.
        before = signal.signal(signal.SIGTERM, signal.default_int_handler)
        try:
            with Client(f"unix:{address}") as client:
                deadline = time.monotonic() + PATIENCE_S
                while not _serves(client):
                    if process.poll() is not None or time.monotonic() > deadline:
                        end = " | ".join(log.read_text("utf-8", "replace").splitlines()[-12:])
                        raise ContactFailed(f"daemon not ready: exit status {process.returncode}; {end}")
                    time.sleep(0.2)
                yield client, process.pid
        finally:
            signal.signal(signal.SIGTERM, before)
            process.terminate()


def _serves(client: Client) -> bool:
    with suppress(CallFailed):
        return client.health() == "SERVING"
    return False


def _say_all(record: Record, out: Path, client: Client, lines: Sequence[tuple[str, str]]) -> None:
    """Speak the lines into WAVs and the record. Raises ContactFailed if one fails."""
    (out / "lines").mkdir(exist_ok=True)
    replies: list[dict[str, Any]] = []
    record.content["lines"] = replies
    for number, (code, text) in enumerate(lines, 1):
        replies.append(line := {"language": code, "text": text, "file": f"lines/{number:02d}.wav"})
        # The device speaks all languages, but has words for few.
        options: Any = {"language": code if code in LANGUAGES else None, "seed": number, "encoding": "pcm16"}
        try:
            reply = client.stream(text, VOICE, timeout=PATIENCE_S, **options).reply()
            line |= _of_reply(reply, out / line["file"])
            record.content.setdefault("engine", line.pop("engine"))
        except CallFailed as error:
            line["error"] = str(error)
        result = line.get("error") or "{audio_s} s in {wall_s} s".format(**line)
        print(f"{number} of {len(lines)}: {text} – {result}", file=sys.stderr)
        record.write()
    if failed := [one["error"] for one in replies if "error" in one]:
        raise ContactFailed(f"{len(failed)} of {len(replies)} lines, the first: {failed[0]}")


def _of_reply(reply: Reply, path: Path) -> dict[str, Any]:
    """Engine, length, times and level of a reply, which is written to `path`."""
    header, samples = reply.header, np.frombuffer(reply.audio, "<i2")
    if not len(samples):
        raise CallFailed("INTERNAL", f"no sound: {header.skipped_reason or 'empty'}")
    soundfile.write(path, samples, header.sample_rate_hertz)
    sizes = np.abs(samples / 32_768)
    peak, rms = (20 * float(np.log10(max(size, 1e-6))) for size in (sizes.max(), np.sqrt(np.mean(sizes**2))))
    passed = {one.backend: one.reason for one in header.passed_over}
    engine = {"backend": header.backend, "nfe": header.nfe_steps, "passed_over": passed}
    return {
        **{"spoken": header.text, "segments": header.segments, "audio_s": round(reply.audio_s, 2)},
        **{"first_sound_s": round(reply.first_audio_s, 3), "wall_s": round(reply.wall_s, 3)},
        **{"rtf": round(reply.wall_s / reply.audio_s, 3), "peak_db": round(peak, 1), "rms_db": round(rms, 1)},
        "engine": engine,
    }


def judged(lines: Sequence[dict[str, Any]], out: Path) -> dict[str, Any]:
    """Wrong words of the English lines, and the reason if none were counted. Adds the count to each line."""
    english = [line for line in lines if line["language"] == "en" and "audio_s" in line]
    if not english or (absent := hearing.missing(hearing.OF_WORDS)):
        return {"not heard": f"not installed: {', '.join(absent)}" if english else "no line of en was spoken"}
    recogniser = hearing.recogniser()
    for line in english:
        line["heard"] = recogniser.transcribe(*soundfile.read(out / line["file"], dtype="int16"))
        errors = hearing.word_errors(line["spoken"], line["heard"])
        line |= {"wrong": errors.wrong, "words": errors.words}
    wrong, words = (sum(line[key] for line in english) for key in ("wrong", "words"))
    return {"wrong": wrong, "words": words, "judge": "moonshine tiny-en"}


def machine() -> dict[str, Any]:
    cpuinfo = Path("/proc/cpuinfo").read_text("utf-8", "replace")
    flags = (line for line in cpuinfo.splitlines() if line.startswith(("flags", "Features")))
    return {
        "system": platform.platform(),
        "processor": processor(cpuinfo),
        "flags": next(flags, "").partition(":")[2].strip(),
        "cores": os.cpu_count(),
        "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9, 1),
        "load": [round(load, 1) for load in os.getloadavg()],
    }


def impersonal(places: Mapping[Path, str], names: Iterable[str] = ()) -> Callable[[Any], Any]:
    """Function that removes paths, names and addresses of this machine from the texts in a JSON value.

    `places` are folders with the words that replace them; `names` are further names to remove.
    """
    temporary, home = Path(tempfile.gettempdir()), Path.home()
    own = {TEXTS.parents[1]: "CHECKOUT", Path(sys.prefix): "PYTHON", temporary: "TMP", home: "~"}
    both = {**own, **places}.items()
    labels = {str(one): word for path, word in both for one in (path.absolute(), path.resolve())}
    labels.pop("/", None)
    scrub = replacing(n for n in {*_names(), *names} if len(n) > 2 and n not in COMMON_NAMES)

    def clean(value: Any) -> Any:
        if isinstance(value, str):
            for path in sorted(labels, key=len, reverse=True):
                value = value.replace(path, labels[path])
            return scrub(value)
        if isinstance(value, Mapping):
            return {str(key): clean(item) for key, item in value.items()}
        return [clean(item) for item in value] if isinstance(value, (list, tuple)) else value

    return clean


def _names() -> Iterator[str]:
    host = socket.gethostname()
    yield from (host, host.partition(".")[0], Path.home().name)
    yield urlsplit(os.environ.get("HF_ENDPOINT", "")).netloc
    with suppress(KeyError, OSError, ImportError):
        yield getpass.getuser()
