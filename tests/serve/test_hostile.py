"""Hostile inputs of every kind that the daemon reads: each gets its status, and speech does not change.

Each file runs dozens by default; `F5_HOSTILE=10000 pytest -s tests/serve/test_hostile.py` tries that many and
prints their outcomes. `F5_SEED=2 … --hypothesis-seed=2` draws others. Wrong values of single fields are rows
of tests/rpc/test_synthesizer.py, and damaged recordings are in tests/voices/test_decode.py.
"""

import random
import shutil
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf.message import Message
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2
from hypothesis import given
from hypothesis import strategies as st

from appliance import config
from appliance.contract import bundle
from appliance.errors import BundleError, ConfigError
from appliance.rpc import appliance_pb2 as pb
from appliance.rpc import appliance_pb2_grpc
from tests.harness.daemons import BUNDLE, ROOT, Shared, request
from tests.harness.hostile import COUNT, ODD_YAML, SEED, Victim, mutated, mutated_yaml, share
from tests.harness.patience import PATIENCE_S
from tests.rpc.conftest import details_of

pytestmark = [pytest.mark.slow, pytest.mark.once]

SERVICES = {method.name: one for one in pb.DESCRIPTOR.services_by_name.values() for method in one.methods}
OK, INVALID, MISSING = grpc.StatusCode.OK, grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.NOT_FOUND
REFLECT = reflection_pb2.ServerReflectionRequest(file_containing_symbol="appliance.v1.Queue")
UNIMPLEMENTED, DAMAGED = grpc.StatusCode.UNIMPLEMENTED, grpc.StatusCode.FAILED_PRECONDITION
EXISTS = grpc.StatusCode.ALREADY_EXISTS
FULL, LATE = grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.DEADLINE_EXCEEDED


class Daemon(Victim):
    """The shared daemon, and a channel that carries arbitrary bytes to it."""

    def __init__(self, daemon: Shared, channel: grpc.Channel) -> None:
        self.daemon, self.channel = daemon, channel
        self.files = {path.name for path in daemon.folder.iterdir()}
        super().__init__(daemon, self._speak)

    def call(self, method: str, message: Message | bytes) -> tuple[grpc.StatusCode, str]:
        """Make a call and read it to its end; return its status, and the field that the error names."""
        raw = message if isinstance(message, bytes) else message.SerializeToString()
        path = method if "/" in method else f"{SERVICES[method].full_name}/{method}"
        return end_of(self.channel.unary_stream(f"/{path}")(raw, timeout=PATIENCE_S))

    def _speak(self) -> bytes:
        asked = request("One, two, three.", nfe_steps=2, playout=pb.OVERLAP)
        return appliance_pb2_grpc.SynthesizerStub(self.channel).Synthesize(asked, timeout=PATIENCE_S).audio


def end_of(call: Any) -> tuple[grpc.StatusCode, str]:
    """Read a stream to its end; return its status, and the field that the error names."""
    try:
        for _ in call:
            pass
    except grpc.RpcError as error:
        bad = details_of(error).get("BadRequest")  # type: ignore[arg-type]
        return error.code(), bad.field_violations[0].field if bad else ""  # type: ignore[attr-defined]
    return OK, ""


@pytest.fixture(scope="module")
def victim(shared_box: Shared) -> Iterator[Daemon]:
    with shared_box.lent(synthesis={"max_text_characters": 2_000}) as daemon, daemon.channel() as channel:
        yield Daemon(daemon, channel)


base = partial(request, nfe_steps=2)
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=40) | st.text(
    st.sampled_from("<speak></brtim='1s/>&;ab 0129.,:/$%#@哈😂\u200d\u0301\u202e"), max_size=40
)
VOICES = ("ann",) * 12 + ("Ann", "../ann", "ann/../ann", "/etc/passwd", "ann\x00", "ghost", "安")
WORDS = st.text(min_size=1, max_size=9)
ANY = st.fixed_dictionaries(
    {
        "text": TEXTS,
        "voice": st.sampled_from(VOICES),
        "text_handling": st.sampled_from((pb.CHAT, pb.CHAT, pb.VERBATIM, pb.SSML)),
        "pronunciations": st.dictionaries(WORDS, WORDS, max_size=3),
    }
)


@share(0.15)
@given(
    ANY,
    st.integers(0, 7),
    st.sampled_from((0, 8_000, 11_025, 24_000, 44_100, 48_000)),
    st.sampled_from(("Synthesize", "StreamSynthesize")),
)
def test_any_text(victim: Daemon, fields: dict[str, Any], encoding: int, rate: int, method: str) -> None:
    text = fields["text"]
    if fields["text_handling"] == pb.SSML and len(text) % 3:
        text = f"<speak>{text.replace('<', '&lt;').replace('&', '&amp;')}<break time='1s'/>a</speak>"
    message = base(**{**fields, "text": text}, nfe_steps=1, max_spoken_seconds=4.0)
    message.audio_config.encoding, message.audio_config.sample_rate_hertz = encoding, rate
    code, _ = victim.call(method, message)
    assert code in (OK, INVALID, MISSING, UNIMPLEMENTED)
    victim.tried("any text", code)


OURS: list[tuple[str, Message]] = [
    ("Synthesize", base(audio_config={"encoding": "FLAC", "speaking_rate": 1.2}, channel="c", user_key="u")),
    (
        "StreamSynthesize",
        base(priority="HIGH", min_nfe_steps=1, queue_timeout={"seconds": 2}, word_timings=True),
    ),
    ("CancelSynthesis", pb.CancelSynthesisRequest(request_id="nobody")),
    ("ListUtterances", pb.ListUtterancesRequest(channel="c")),
    ("CancelUtterances", pb.CancelUtterancesRequest(request_ids=["a", "b"], user_key="u")),
    ("Skip", pb.ChannelRequest(channel="stage")),
    ("Clear", pb.ChannelRequest(channel="stage")),
    ("ListVoices", pb.ListVoicesRequest(page_size=3, page_token="ann")),
    ("GetVoice", pb.GetVoiceRequest(name="ann")),
    ("UpdateVoice", pb.UpdateVoiceRequest(name="ghost", pronunciations={"words": {"a": "b"}})),
    ("CreateVoice", pb.CreateVoiceRequest(name="new", audio=b"RIFF", transcript="Hi.", validate_only=True)),
    ("CreateStyle", pb.CreateStyleRequest(voice="ann", style="happy", audio=b"RIFF", transcript="Hi.")),
    ("DeleteStyle", pb.DeleteStyleRequest(voice="ann", style="happy")),
]
OTHERS: list[tuple[str, Message]] = [
    ("grpc.health.v1.Health/Check", health_pb2.HealthCheckRequest(service="appliance.v1.Queue")),
    ("grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo", REFLECT),
    ("nvidia.riva.tts.RivaSpeechSynthesis/GetRivaSynthesisConfig", pb.ListVoicesRequest(page_token="en")),
    ("nvidia.riva.tts.RivaSpeechSynthesis/Synthesize", pb.GetVoiceRequest(name="Hi there.")),
]
"""Methods of other services, with a message for each; Riva's methods need only the first field."""


@pytest.mark.parametrize(
    ("part", "messages", "allowed"),
    [(0.2, OURS, (EXISTS, FULL, LATE)), (0.1, OTHERS, ())],
    ids=["ours", "other services"],
)
def test_mutated_messages(
    victim: Daemon, part: float, messages: list[tuple[str, Message]], allowed: tuple[grpc.StatusCode, ...]
) -> None:
    dice = random.Random(f"{SEED} {part}")
    for _ in range(max(round(part * COUNT), 20)):
        method, message = dice.choice(messages)
        raw = mutated(message.SerializeToString(), dice)
        code, _ = victim.call(method, raw)
        assert code in (OK, INVALID, MISSING, UNIMPLEMENTED, *allowed), (method, raw)
        victim.tried("protobuf", code)


HOSTILE_NAMES = st.one_of(
    st.sampled_from(
        ("../x", "..", ".", "/etc/passwd", "a/b", "a\\b", "ann\n", "a\x00", ".ann.01234567", "CON", "é")
    ),
    st.text(max_size=80),
    st.integers(65, 3_000).map("n".__mul__),
)

NAMING: dict[str, Callable[[str], Message]] = {
    "GetVoice": lambda name: pb.GetVoiceRequest(name=name),
    "DeleteVoice": lambda name: pb.DeleteVoiceRequest(name=name),
    "UpdateVoice": lambda name: pb.UpdateVoiceRequest(name=name, display_name=name[:100]),
    "CreateVoice": lambda name: pb.CreateVoiceRequest(name=name, audio=b"", transcript=name[:1000]),
    "CreateStyle": lambda name: pb.CreateStyleRequest(
        voice="ann", style=name, audio=b"", transcript=name[:1000]
    ),
    "DeleteStyle": lambda name: pb.DeleteStyleRequest(voice="ann", style=name),
    "CancelSynthesis": lambda name: pb.CancelSynthesisRequest(request_id=name),
}


@share(0.1)
@given(st.sampled_from(tuple(NAMING)), HOSTILE_NAMES)
def test_names_lead_nowhere(victim: Daemon, method: str, name: str) -> None:
    if name == "ann":
        return
    code, _ = victim.call(method, NAMING[method](name))
    expected = INVALID if method in ("CreateVoice", "CreateStyle") else MISSING
    assert code is expected or (method, code) == ("UpdateVoice", INVALID)
    victim.tried("name", code)


STEPS = st.one_of(
    st.builds(lambda t: pb.SessionRequest(text=t), TEXTS),
    st.builds(lambda n: pb.SessionRequest(cancel=pb.CancelUtterance(utterance=n)), st.integers(0, 4)),
    st.sampled_from(
        (pb.SessionRequest(flush=pb.Flush()), pb.SessionRequest(), pb.SessionRequest(configure=base()))
    ),
)


@share(0.05)
@given(st.booleans(), st.lists(STEPS, max_size=6))
def test_sessions_out_of_order(victim: Daemon, begun: bool, steps: list[pb.SessionRequest]) -> None:
    configure = base(text="", nfe_steps=1, max_spoken_seconds=3.0)
    messages = [pb.SessionRequest(configure=configure)] * begun + steps
    stub = appliance_pb2_grpc.SynthesizerStub(victim.channel)
    code, _ = end_of(stub.Session(iter(messages), timeout=PATIENCE_S))
    assert code in (OK, INVALID)
    assert begun or not messages or code is INVALID
    victim.tried("session", code)


def test_mutated_voice_files(victim: Daemon) -> None:
    """A voice with a damaged file speaks or is reported as damaged; other voices do not change."""
    dice, box = random.Random(f"{SEED} 6"), victim.daemon.folder
    victim.daemon.add_voice("bea")
    whole = {path: path.read_bytes() for path in (box / "voices" / "bea").iterdir()}
    asked = base(voice="bea", nfe_steps=1)
    for _ in range(max(round(0.05 * COUNT), 10)):
        path = dice.choice(sorted(whole))
        path.write_bytes(mutated(whole[path], dice))
        for cached in (box / "cache").glob("*.ref"):
            if dice.random() < 0.5:
                cached.write_bytes(mutated(cached.read_bytes(), dice))
        code, _ = victim.call("Synthesize", asked)
        assert code in (OK, DAMAGED)
        assert victim.call("GetVoice", pb.GetVoiceRequest(name="bea"))[0] in (OK, DAMAGED)
        assert victim.call("ListVoices", pb.ListVoicesRequest())[0] is OK
        victim.tried("voice file", code)
        for path, content in whole.items():
            path.write_bytes(content)
    assert victim.call("Synthesize", asked)[0] is OK
    victim.call("DeleteVoice", pb.DeleteVoiceRequest(name="bea"))


def test_mutated_configurations(victim: Daemon, tmp_path: Path) -> None:
    dice, path = random.Random(f"{SEED} 7"), tmp_path / "appliance.yaml"
    text = (ROOT / "configs" / "appliance.yaml").read_text("utf-8")
    for _ in range(max(round(0.15 * COUNT), 10)):
        path.write_bytes(mutated_yaml(text, dice))
        try:
            config.load(path, [f"text.emoji={dice.choice(ODD_YAML)}"] if dice.random() < 0.1 else [])
            outcome = "OK"
        except ConfigError as error:
            assert str(error)
            outcome = "ConfigError"
        victim.tried("configuration", outcome)


def test_mutated_bundles(victim: Daemon, tmp_path: Path) -> None:
    dice, folder = random.Random(f"{SEED} 8"), tmp_path / "bundle"
    shutil.copytree(BUNDLE, folder)
    text = (folder / "manifest.yaml").read_text("utf-8")
    for number in range(max(round(0.05 * COUNT), 10)):
        (folder / "manifest.yaml").write_bytes(mutated_yaml(text, dice) if number % 5 else text.encode())
        path = dice.choice([path for path in folder.rglob("*") if path.is_file() and path.suffix != ".yaml"])
        whole = path.read_bytes()
        if number % 5 == 0:
            path.write_bytes(mutated(whole, dice))
        try:
            bundle.read(folder)
            outcome = "OK"
        except BundleError as error:
            assert str(error)
            outcome = "BundleError"
        assert number % 5 or outcome == "BundleError" or path.read_bytes() == whole
        victim.tried("bundle", outcome)
        path.write_bytes(whole)


def test_afterwards_the_daemon_is_as_it_was(victim: Daemon) -> None:
    """The last test: speech, memory, log and files. The daemon must exit well after the last test file."""
    victim.check(0.6 * COUNT)
    box = victim.daemon.folder
    assert {path.name for path in box.iterdir()} == victim.files
    assert {path.name for path in (box / "voices").iterdir()} - {".held.json"} == {"ann"}
    assert sorted(path.name for path in box.parent.iterdir()) == ["box"]
