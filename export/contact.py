"""First contact with known weights: fetch, export, speak through a daemon, and one JSON of what was found.

The JSON is written anew at each stage, so it says where a run ended that was killed; what a stage has found
stays in it when a later one fails.
"""

from __future__ import annotations

import datetime
import itertools
import json
import math
import re
import signal
import subprocess
import sys
import tempfile
import time
import traceback
import wave
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from appliance.bench.machine import memory_mb
from appliance.client import CallFailed, Client, Reply, Voice
from appliance.contract import bundle as contract
from appliance.contract.bundle import Manifest
from appliance.durable import replace_file
from appliance.engine.cases import FEMALE, VOICES
from appliance.text.languages import LANGUAGES
from export import fetch, hearing
from export.fetch import Fetched
from export.machine import Used, espeak_version, impersonal, machine, versions
from export.sources.licence import RECORD, read_record, terms

FORMAT = 1
LINES = 20
TEXTS = Path(__file__).with_name("lines.yaml")
VOICE = "contact"
REASON = "first contact: measured, whatever it finds"
"""`accepted_by` of a bundle that is beyond its bounds: its parity and speech are to be known all the same."""
START_S = 1_800.0
SPEAK_S = 1_800.0
"""Limit of one line: a Base on a slow core takes a minute for ten seconds of speech."""
STOP_S = 60.0
LOOK_S = 0.2
LOG_LINES = 12
"""Last lines of a daemon's log in the record of its failure."""
FULL_SCALE = 32_768.0
HEARD = "en"
"""Language of the judge of words."""


class ContactFailed(RuntimeError):
    """A stage failed, or the weights are beyond a bound; the record says so too."""


class StageFailed(Exception):
    """A stage ended with an error, which is in the record."""


@dataclass(frozen=True)
class Reference:
    """Recording that the lines follow."""

    name: str
    audio: bytes
    words: str
    path: Path | None = None
    """Place of somebody's own, of which the record has only length, level and hash."""

    @property
    def options(self) -> Sequence[str]:
        """Options of `bundle`, for the evidence."""
        return () if self.path is None else ("--recording", str(self.path), "--transcript", self.words)


@dataclass(frozen=True)
class Line:
    language: str
    text: str


@dataclass(frozen=True)
class Visit:
    name: str
    out: Path
    fetched: Path
    """Folder of `fetch`."""
    options: Sequence[str] = ()
    """More of `bundle`'s."""
    lines: Path | None = None
    """File with a text on each line, in place of those of TEXTS."""
    reference: Reference | None = None
    """None: the demo's FEMALE."""

    @property
    def bundle(self) -> Path:
        return self.out / "bundle"

    @property
    def spoken(self) -> Path:
        return self.out / "lines"

    @property
    def record(self) -> Path:
        return self.out / f"{self.name}.json"


def meet(visit: Visit, make: Callable[[Sequence[str]], object]) -> None:
    """Write the record of a visit. Raises ContactFailed if a stage fails or a bound is broken.

    `make` runs `python -m export` with these arguments. Raises FetchError for weights that are not known.
    """
    row = fetch.row_of(visit.name)
    lines = lines_of(row.languages, visit.lines)
    reference = visit.reference or demo_reference()
    if visit.bundle.exists():
        raise ContactFailed(f"{visit.bundle} exists; remove it, or name another --out")
    visit.out.mkdir(parents=True, exist_ok=True)
    record = Record(visit)
    record.content["licence"] = {name: text for name, text in asdict(terms(row)).items() if name != "files"}
    record.content["unverified"] = row.unverified
    # The daemon is not to outlive a command that is ended.
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        _fetch_and_export(record, visit, [*visit.options, *reference.options], make)
        _speak(record, visit, lines, reference)
        with record.stage("judge"):
            record.content["words"] = judged(record.content["lines"], visit.spoken)
    except StageFailed:
        pass
    finally:
        signal.signal(signal.SIGTERM, before)
        record.write()
    print(record.gist())
    if record.findings:
        raise ContactFailed(f"{'; '.join(record.findings)}: {visit.record} has the rest")


def lines_of(languages: Sequence[str], own: Path | None = None) -> list[Line]:
    """Twenty lines, of two of the languages at most. Raises ContactFailed where there are none."""
    if own is not None:
        texts = [text for text in map(str.strip, own.read_text("utf-8").splitlines()) if text]
        if not texts:
            raise ContactFailed(f"{own}: holds no text")
        return [Line(languages[0], text) for text in texts]
    known: dict[str, list[str]] = yaml.safe_load(TEXTS.read_text("utf-8"))
    spoken = [language for language in languages if language in known][:2]
    if not spoken:
        raise ContactFailed(
            f"no lines of {', '.join(languages)} are here, only of {', '.join(known)}: --lines FILE, "
            "with a text on each line"
        )
    return [Line(code, text) for code in spoken for text in known[code][: LINES // len(spoken)]]


def demo_reference() -> Reference:
    words = VOICES.joinpath(f"{FEMALE}.txt").read_text("utf-8").strip()
    return Reference(f"{FEMALE}, of the demo voice", VOICES.joinpath(f"{FEMALE}.wav").read_bytes(), words)


class Record:
    """The JSON of a visit."""

    def __init__(self, visit: Visit) -> None:
        self._path = visit.record
        self._clean = impersonal({visit.out: "OUT", visit.fetched: "WEIGHTS"})
        self.findings: list[str] = []
        """Failed stages and broken bounds."""
        self.content: dict[str, Any] = {
            "format": FORMAT,
            "name": visit.name,
            "date": datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
            "asked": list(visit.options),
            "machine": machine(),
            "versions": versions(),
            "stages": {},
        }

    def write(self) -> None:
        self.content["findings"] = self.findings
        replace_file(self._path, laid_out(self._clean(self.content)).encode())

    @contextmanager
    def stage(self, name: str) -> Iterator[dict[str, Any]]:
        """Time a stage; its dictionary may be added to. Raises StageFailed for an error within."""
        stage: dict[str, Any] = {"status": "running"}
        self.content["stages"][name] = stage
        self.write()
        print(f"first contact: {name}", file=sys.stderr)
        used = Used()
        try:
            yield stage
            stage["status"] = "done"
        except BaseException as error:
            text = str(error) or type(error).__name__
            at = [f"{f.filename}:{f.lineno} {f.name}" for f in traceback.extract_tb(error.__traceback__)[-3:]]
            stage |= {"status": "failed", "error": f"{type(error).__name__}: {text}", "at": at}
            self.findings.append(f"{name}: {text}")
            if not isinstance(error, Exception):  # Ctrl-C
                raise
            raise StageFailed from error
        finally:
            stage |= used.record()
            self.write()

    def gist(self) -> str:
        """Summary for a person at the end."""
        lines = [f"{self._path}:"]
        stages = self.content["stages"].items()
        took = ", ".join(f"{name} {stage['wall_s']:.0f} s" for name, stage in stages)
        lines.append(f"  stages    {took}")
        for graph in self.content.get("bundle", {}).get("parity", {}).get("worst", []):
            bound = "no bound" if graph["bound"] is None else f"allowed {graph['bound']:.1e}"
            lines.append(f"  parity    {graph['what']} of {graph['variant']}: {graph['error']:.1e}, {bound}")
        if said := [line for line in self.content.get("lines", []) if "audio_s" in line]:
            audio_s, wall_s = (sum(line[key] for line in said) for key in ("audio_s", "wall_s"))
            lines.append(f"  spoken    {len(said)} lines, {audio_s:.1f} s in {wall_s:.1f} s")
        if words := self.content.get("words"):
            lines.append(
                f"  words     {words.get('not heard') or '{wrong} of {words} wrong'.format(**words)}"
            )
        lines.append(
            "It holds no name, path or address of yours: read it, and attach it to an issue of this project."
        )
        return "\n".join(lines)


def laid_out(content: dict[str, Any]) -> str:
    """JSON with each innermost object on a line."""
    text = json.dumps(content, indent=1, ensure_ascii=False)
    # Line ends are only the layout's: within texts they are escaped.
    return re.sub(r"\{[^{}\[\]]*\}", lambda one: re.sub(r"\n\s*", " ", one[0]), text) + "\n"


def _fetch_and_export(
    record: Record, visit: Visit, more: Sequence[str], make: Callable[[Sequence[str]], object]
) -> None:
    with record.stage("fetch"):
        got = fetch.fetch(visit.name, visit.fetched)
        record.content["licence"] = asdict(got.licence)
        record.content["fetched"] = _hashes(got)
    with record.stage("export"):
        options = (str(word) for option in got.options.items() for word in option)
        make(["bundle", *options, *more, "--accept", REASON, "--out", str(visit.bundle)])
        made = contract.read(visit.bundle, verify=False).manifest
        record.content["bundle"] = _summary(made)
        if made.text.tokenizer not in ("pinyin", "char", "letters", "phones"):
            record.content["versions"]["espeak-ng"] = espeak_version()
        record.findings += [f"parity: {line}" for line in made.parity.get("failed", [])]
        if "accepted_by" in made.evidence:
            record.findings.append(f"evidence: {made.evidence['verdict']}, losses {made.evidence['losses']}")


def _hashes(got: Fetched) -> dict[str, Any]:
    """Size and sha256 of the files of each folder."""
    found: dict[str, Any] = {}
    for folder in (got.checkpoint.parent, got.vocoder if got.vocoder.is_dir() else got.vocoder.parent):
        recorded = read_record(folder)
        files = recorded.files if recorded else {}
        found[folder.name] = [
            {"file": name, "bytes": (folder / name).stat().st_size, "sha256": digest}
            for name, digest in files.items()
            if name != RECORD
        ]
    return found


def _summary(made: Manifest) -> dict[str, Any]:
    rows = made.parity.get("rows", [])
    return {
        "family": made.family,
        "precision": made.precision,
        "weights": made.weights,
        "languages": list(made.text.languages),
        "tokenizer": made.text.tokenizer,
        "sampler": asdict(made.sampler),
        "defaults": asdict(made.defaults),
        "max_frames": made.max_frames,
        "licence": asdict(made.licence),
        "evidence": made.evidence,
        "parity": {**made.parity, "worst": _worst(rows), "rows": rows},
        "files": [
            {"file": name, "bytes": file.size_bytes, "sha256": file.sha256}
            for name, file in made.files.items()
        ],
    }


def _worst(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows nearest to their bound or beyond it, one of each graph and variant."""

    def key(row: dict[str, Any]) -> tuple[str, str]:
        return row["variant"], row["what"]

    def share(row: dict[str, Any]) -> tuple[float, float]:
        return float(row["error"]) / (row["bound"] or math.inf), float(row["error"])

    return [max(of, key=share) for _, of in itertools.groupby(sorted(rows, key=key), key)]


def _speak(record: Record, visit: Visit, lines: Sequence[Line], reference: Reference) -> None:
    made = contract.read(visit.bundle, verify=False).manifest
    with tempfile.TemporaryDirectory(prefix="contact-") as folder:
        daemon = Daemon(visit.bundle, Path(folder))
        try:
            with record.stage("start"):
                daemon.start()
            with Client(daemon.address) as client:
                with record.stage("voice"):
                    voice = client.add_voice(VOICE, reference.audio, reference.words, timeout=SPEAK_S)
                    record.content["voice"] = _of_voice(voice, reference)
                with record.stage("speak") as stage:
                    _say_all(record, visit.spoken, client, daemon, made, lines)
                    stage["daemon_peak_mb"] = daemon.peak_mb
        finally:
            daemon.stop()


def _of_voice(voice: Voice, reference: Reference) -> dict[str, Any]:
    found = {"sha256": voice.sha256, "seconds": round(voice.duration_s, 2), "rms": round(voice.rms, 4)}
    if reference.path is not None:
        return {"name": "own", **found}
    return {"name": reference.name, "words": reference.words, **found, "warnings": list(voice.warnings)}


class Daemon:
    """`appliance serve` on a Unix socket of a folder, which has its voices, cache and log too."""

    def __init__(self, bundle: Path, folder: Path) -> None:
        self.address = f"unix:{folder / 'grpc.sock'}"
        self._log = folder / "daemon.log"
        settings = {
            "bundle.path": bundle.absolute(),
            "engine.cache": folder / "engines",
            "voices.folder": folder / "voices",
            "voices.cache": folder / "cache",
            "audio.loudness_lufs": "null",  # levels are the model's
            "server.listen": "127.0.0.1:0",
            "server.socket": folder / "grpc.sock",
            "server.metrics": "",
        }
        options = itertools.chain.from_iterable(
            ("--set", f"{key}={value}") for key, value in settings.items()
        )
        self._command = [sys.executable, "-m", "appliance", "serve", *options]
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Return when it serves. Raises ContactFailed with the end of its log."""
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(self._command, stdout=log, stderr=log)
        deadline = time.monotonic() + START_S
        with Client(self.address) as client:
            while not self._serves(client):
                if self._process.poll() is not None or time.monotonic() > deadline:
                    raise ContactFailed(f"the daemon does not get ready: {self._log_end()}")
                time.sleep(LOOK_S)

    def _serves(self, client: Client) -> bool:
        try:
            return client.health() == "SERVING"
        except CallFailed:
            return False

    def _log_end(self) -> str:
        status = self._process and self._process.poll()
        ended = "" if status is None else f"exit status {status}; "
        return ended + " | ".join(self._log.read_text("utf-8", "replace").splitlines()[-LOG_LINES:])

    @property
    def peak_mb(self) -> int:
        """Largest resident memory; 0 if it cannot be read."""
        return round(memory_mb(self._process.pid if self._process else None).get("peak", 0.0))

    def stop(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()


def _say_all(
    record: Record, folder: Path, client: Client, daemon: Daemon, made: Manifest, lines: Sequence[Line]
) -> None:
    """Speak the lines into `folder` and the record. Raises ContactFailed if one fails."""
    folder.mkdir(exist_ok=True)
    spoken: list[dict[str, Any]] = []
    record.content["lines"] = spoken
    for number, line in enumerate(lines, 1):
        used, told = Used(), {"language": line.language, "text": line.text}
        # The device knows words of few languages, and speaks all.
        language = line.language if line.language in LANGUAGES else None
        try:
            stream = client.stream(
                line.text, VOICE, timeout=SPEAK_S, language=language, seed=number, encoding="pcm16"
            )
            reply = stream.reply()
        except CallFailed as error:
            spoken.append(told | {"error": str(error)})
        else:
            cpu = {"cpu_s": used.record()["cpu_s"]}
            spoken.append(told | _of_reply(reply, made) | cpu)
            record.content.setdefault("engine", _engine(reply))
            _write_wav(folder / file_of(number), reply)
        shown = spoken[-1].get("error") or "{audio_s} s in {wall_s} s".format(**spoken[-1])
        print(f"{number} of {len(lines)}: {line.text} – {shown}", file=sys.stderr)
        record.write()
    if failed := [one["error"] for one in spoken if "error" in one]:
        raise ContactFailed(f"{len(failed)} of {len(spoken)} lines, the first: {failed[0]}")


def _of_reply(reply: Reply, made: Manifest) -> dict[str, Any]:
    """Length, times and level of a reply."""
    samples = np.frombuffer(reply.audio, "<i2") / FULL_SCALE
    level = {
        "peak": np.abs(samples).max(initial=0.0),
        "rms": np.sqrt(np.mean(samples**2)) if len(samples) else 0.0,
    }
    audio_s, rate_hz = reply.audio_s, reply.header.sample_rate_hertz
    return {
        "spoken": reply.header.text,
        "seed": reply.header.seed,
        "segments": reply.header.segments,
        "frames": round(audio_s * rate_hz / made.mel.hop),
        "audio_s": round(audio_s, 2),
        "first_sound_s": round(reply.first_audio_s, 3),
        "wall_s": round(reply.wall_s, 3),
        "rtf": round(reply.wall_s / audio_s, 3) if audio_s else None,
        **{f"{name}_db": round(20 * float(np.log10(max(value, 1e-6))), 1) for name, value in level.items()},
        **({} if reply.audio else {"error": f"no sound: {reply.header.skipped_reason or 'empty'}"}),
    }


def _engine(reply: Reply) -> dict[str, Any]:
    passed = {one.backend: one.reason for one in reply.header.passed_over}
    return {"backend": reply.header.backend, "nfe": reply.header.nfe_steps, "passed_over": passed}


def file_of(number: int) -> str:
    return f"{number:02d}.wav"


def _write_wav(path: Path, reply: Reply) -> None:
    with path.open("wb") as stream, wave.open(stream, "wb") as out:
        out.setnchannels(1)
        out.setsampwidth(2)
        out.setframerate(reply.header.sample_rate_hertz)
        out.writeframes(reply.audio)


def judged(lines: Sequence[dict[str, Any]], folder: Path) -> dict[str, Any]:
    """Wrong words of the lines spoken into `folder`, each line's added to it; why none were counted.

    The judge knows HEARD alone.
    """
    if absent := hearing.missing(hearing.OF_WORDS):
        return {"not heard": f"not installed: {', '.join(absent)}"}
    said = [(n, line) for n, line in enumerate(lines, 1) if line["language"] == HEARD and line.get("audio_s")]
    if not said:
        return {"not heard": f"no line of {HEARD} was spoken"}
    recogniser, errors = hearing.Recogniser(), hearing.Errors(0, 0)
    for number, line in said:
        with wave.open(str(folder / file_of(number))) as file:
            samples = np.frombuffer(file.readframes(file.getnframes()), "<i2")
            line["heard"] = recogniser.transcribe(samples, file.getframerate())
        found = hearing.word_errors(line["spoken"], line["heard"])
        line |= {"wrong": found.wrong, "words": found.words}
        errors += found
    return {"wrong": errors.wrong, "words": errors.words, "judge": "moonshine tiny-en"}
