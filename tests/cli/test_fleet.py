"""Two daemons behind Debian's haproxy with configs/haproxy.cfg, and voices that are copied between them."""

import contextlib
import csv
import io
import re
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from appliance import cli
from appliance.cli import replicate
from appliance.client import CallFailed, Client, Piece
from appliance.config import VoicesConfig
from appliance.contract import bundle
from appliance.voices.records import Place, Recorded
from appliance.voices.store import VoiceStore, open_store
from tests.harness.daemons import (
    BUNDLE,
    ROOT,
    Running,
    Shared,
    finished,
    free_port,
    reference_wav,
    running,
    shared,
)
from tests.harness.patience import PATIENCE_S, until

pytestmark = [pytest.mark.slow, pytest.mark.once]

TRANSCRIPT = "Some call me nature, others call me mother nature."
CONFIGURATION = ROOT / "configs" / "haproxy.cfg"
HAPROXY = shutil.which("haproxy", path="/usr/sbin:/usr/local/sbin:/usr/bin")
needs_haproxy = pytest.mark.skipif(HAPROXY is None, reason="haproxy is not installed")


def test_a_voice_is_copied_before_its_styles() -> None:
    ann, sad, bea = Place("ann"), Place("ann", "sad"), Place("bea")
    stored = dict.fromkeys((bea, sad, ann), Recorded("", "", "", "", "", 0, 0.0, 0.0))
    steps = replicate.plan(replicate.ReplicaSource(Path(), stored, {}), (), remove=False)
    assert [(step.kind, step.place) for step in steps] == [("add", ann), ("add", sad), ("add", bea)]


@needs_haproxy
def test_haproxy_takes_the_configuration() -> None:
    checked = finished(HAPROXY, "-c", "-f", CONFIGURATION)
    assert checked.returncode == 0, checked.stderr
    assert "WARNING" not in checked.stderr, checked.stderr


def configuration(members: list[Running], port: int, control: Path) -> str:
    """The committed configuration with these addresses."""
    # User, log and socket belong to the service and are removed.
    text = re.sub(r"^    (user|group|log /dev/log).*\n", "", CONFIGURATION.read_text(), flags=re.MULTILINE)
    text = re.sub(r"stats socket \S+", f"stats socket {control}", text)
    text = text.replace("bind :50051 proto", f"bind 127.0.0.1:{port} proto")
    for number, box in enumerate(members, 1):
        ports = {key: box.config["server"][key].rpartition(":")[2] for key in ("metrics", "agent")}
        own = f"{box.address} port {ports['metrics']} agent-port {ports['agent']}"
        text = re.sub(rf"(server box{number}) \S+$", rf"\1 {own}", text, flags=re.MULTILINE)
        text = re.sub(rf"(server box{number}) \S+ track", rf"\1 {box.address} track", text)
    # The boxes of this test share a machine, so that they cannot share one port.
    return text.replace("connect port 9464 proto", "connect proto")


@dataclass(frozen=True)
class Front:
    """A running haproxy."""

    address: str
    control: Path

    def boxes(self, backend: str) -> list[dict[str, str]]:
        """haproxy's statistics of each box."""
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(str(self.control))
            connection.sendall(b"show stat\n")
            with connection.makefile("r") as answer:
                rows = list(csv.DictReader(io.StringIO(answer.read().removeprefix("# "))))
        return [row for row in rows if row["pxname"] == backend and row["svname"].startswith("box")]

    def calls(self, backend: str) -> tuple[int, ...]:
        """Number of calls that haproxy has sent to each box so far."""
        return tuple(int(row["stot"]) for row in self.boxes(backend))

    def are_up(self) -> list[bool]:
        return [row["status"].startswith("UP") for row in self.boxes("by_load")]


@contextlib.contextmanager
def front(members: list[Running], folder: Path) -> Iterator[Front]:
    """Start haproxy, and wait until its checks find all boxes ready."""
    path, proxy = folder / "haproxy.cfg", Front(f"127.0.0.1:{free_port()}", folder / "control.sock")
    path.write_text(configuration(members, int(proxy.address.rpartition(":")[2]), proxy.control))
    with subprocess.Popen([str(HAPROXY), "-db", "-f", path], stderr=subprocess.PIPE, text=True) as process:
        try:
            until(lambda: proxy.control.exists() or process.poll() is not None)
            assert process.poll() is None, process.communicate()[1]
            until(lambda: all(proxy.are_up()))
            yield proxy
        finally:
            process.terminate()


@needs_haproxy
def test_two_boxes_behind_haproxy(tmp_path: Path) -> None:
    """The daemons start once for all checks, since their start takes longest."""
    with contextlib.ExitStack() as stack:
        members = []
        for name in ("box1", "box2"):
            (folder := tmp_path / name).mkdir()
            # The daemons see all calls from haproxy's address.
            server = {"agent": f"127.0.0.1:{free_port()}", "max_calls_of_peer": 256}
            members.append(stack.enter_context(running(folder, server=server)))
            members[-1].add_voice()
        proxy = stack.enter_context(front(members, tmp_path))
        check_channels_stay(proxy)
        check_a_cancelled_call_ends(members, proxy)
        check_a_box_that_is_gone_gets_no_call(members, proxy)


def check_channels_stay(proxy: Front) -> None:
    used = set()
    with Client(proxy.address) as client:
        for channel in (f"stage {number}" for number in range(8)):
            before = proxy.calls("by_channel")
            for _ in range(3):
                client.speak("Hello, chat.", "ann", channel=channel)
            after = proxy.calls("by_channel")
            used.add(tuple(now - then for now, then in zip(after, before, strict=True)))
    assert used == {(3, 0), (0, 3)}


def check_a_cancelled_call_ends(members: list[Running], proxy: Front) -> None:
    """The box counts it as cancelled."""
    with Client(proxy.address) as client:
        for event in client.stream("That was a great round, well played everyone. " * 12, "ann", nfe=16):
            if isinstance(event, Piece):
                break
        counted = 'f5_requests_total{method="StreamSynthesize",status="CANCELLED"} 1.0'
        until(lambda: any(counted in box.http("/metrics")[1] for box in members))


def check_a_box_that_is_gone_gets_no_call(members: list[Running], proxy: Front) -> None:
    members[0].stop(signal.SIGKILL)
    until(lambda: proxy.are_up() == [False, True])
    before, calls = proxy.calls("by_load"), 4
    with Client(proxy.address) as client:
        for _ in range(calls):
            client.speak("Hello, chat.", "ann")
    assert proxy.calls("by_load") == (before[0], before[1] + calls)


def without_voices(box: Shared) -> None:
    with Client(box.address) as client:
        client.remove_voice("ann", timeout=PATIENCE_S)


box = shared(without_voices)


@pytest.fixture
def store(tmp_path: Path) -> VoiceStore:
    config = VoicesConfig(folder=tmp_path / "voices", cache=tmp_path / "cache")
    return open_store(config, bundle.read(BUNDLE))


@pytest.fixture
def sync(box: Running, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Any:
    """`appliance voices sync` to the box: its exit status, and the state of each voice."""

    def run(*more: str, boxes: tuple[str, ...] = (box.address,)) -> tuple[int, dict[str, str]]:
        status = cli.main(["voices", "sync", *boxes, "--folder", str(tmp_path / "voices"), *more])
        rows = [line.split(maxsplit=2) for line in capsys.readouterr().out.splitlines()]
        return status, {name: state for _, name, state in rows}

    return run


def test_voices_are_copied_by_content(box: Running, store: VoiceStore, sync: Any, tmp_path: Path) -> None:
    assert sync()[0] == cli.FAILED  # nothing to copy
    more: Any = {"display_name": "Ann", "pronunciations": {"gg": "good game"}}
    store.create(Place("ann"), reference_wav(3.0), TRANSCRIPT, "Ann agreed.", **more)
    store.create(Place("bea"), reference_wav(4.0), TRANSCRIPT)
    with Client(box.address) as client:
        client.add_voice("zoe", reference_wav(3.5), TRANSCRIPT, timeout=PATIENCE_S)
        assert sync("--dry-run") == (0, {"ann": "add", "bea": "add", "zoe": "extra"})
        assert [voice.name for voice in client.voices()] == ["zoe"]
        assert sync() == (0, {"ann": "add", "bea": "add", "zoe": "extra"})
        ann = client.voice("ann")
        assert (ann.sha256, ann.transcript) == (store.index.voice("ann").sha256, TRANSCRIPT)
        assert ann.consent_note == "Ann agreed."
        assert {"display_name": ann.display_name, "pronunciations": dict(ann.pronunciations)} == more
        assert sync() == (0, {"ann": "same", "bea": "same", "zoe": "extra"})

        store.update("ann", "Annie")
        store.delete(Place("bea"))
        store.create(Place("bea"), reference_wav(5.0), TRANSCRIPT)
        assert sync("--remove") == (0, {"ann": "update", "bea": "replace", "zoe": "remove"})
        assert client.voice("ann").display_name == "Annie"
        assert client.voice("bea").sha256 == store.index.voice("bea").sha256
        assert [voice.name for voice in client.voices()] == ["ann", "bea"]

        # A damaged voice or style is neither copied nor removed.
        (tmp_path / "voices" / "bea" / "audio").write_bytes(b"cut")
        status, states = sync("--remove")
        assert status == cli.FAILED and states["ann"] == "same" and states["bea"].startswith("damaged")
        assert client.voice("bea").duration_s > 3.0
    (tmp_path / "voices" / "bea" / "audio").unlink()
    status, states = sync(boxes=(f"127.0.0.1:{free_port()}", box.address))
    assert status == cli.FAILED and states["-"] == "no daemon answers" and states["ann"] == "same"
    with Client(box.address) as client, pytest.raises(CallFailed, match="NOT_FOUND"):
        client.voice("bea-check")


def test_styles_are_copied_with_voices(box: Running, store: VoiceStore, sync: Any, tmp_path: Path) -> None:
    def states() -> dict[str, str]:
        found: dict[str, str] = sync("--remove")[1]
        return found

    store.create(Place("cea"), reference_wav(3.0), TRANSCRIPT)
    store.create(Place("cea", "happy"), reference_wav(2.5), TRANSCRIPT, "Cea agreed.")
    store.create(Place("cea", "sad"), reference_wav(3.5), TRANSCRIPT)
    with Client(box.address) as client:
        assert states().items() >= {"cea": "add", "cea/happy": "add", "cea/sad": "add"}.items()
        for voice in (client.voice("cea"), *client.voices()):
            assert [(s.name, s.sha256, s.consent_note) for s in voice.styles] == [
                (s.name, s.sha256, s.consent_note) for s in store.index.described("cea").styles
            ]
        assert states() == {"cea": "same", "cea/happy": "same", "cea/sad": "same"}

        store.delete(Place("cea", "happy"))
        store.create(Place("cea", "happy"), reference_wav(4.0), TRANSCRIPT)
        store.delete(Place("cea", "sad"))
        client.add_style("cea", "calm", reference_wav(2.2), TRANSCRIPT, timeout=PATIENCE_S)
        assert states() == {"cea": "same", "cea/calm": "remove", "cea/happy": "replace", "cea/sad": "remove"}
        (style,) = client.voice("cea").styles
        assert style.sha256 == store.index.described("cea").styles[0].sha256

        # Replacing a voice stores its styles again.
        store.delete(Place("cea"))
        store.create(Place("cea"), reference_wav(5.0), TRANSCRIPT)
        store.create(Place("cea", "happy"), reference_wav(4.0), TRANSCRIPT)
        client.add_style("cea", "calm", reference_wav(2.2), TRANSCRIPT, timeout=PATIENCE_S)
        assert states() == {"cea": "replace", "cea/happy": "add"}
        assert [style.name for style in client.voice("cea").styles] == ["happy"]
        assert client.voice("cea").sha256 == store.index.voice("cea").sha256

        # A damaged voice or style is neither copied nor removed.
        (tmp_path / "voices" / "cea" / "styles" / "happy" / "audio").write_bytes(b"cut")
        told = states()
        assert told["cea"] == "same" and told["cea/happy"].startswith("damaged")
        assert [style.name for style in client.voice("cea").styles] == ["happy"]
