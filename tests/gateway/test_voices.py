"""Voices over HTTP: multipart forms, access, other sites."""

import base64
from collections.abc import Mapping

import pytest

from appliance.access.token_file import Role
from appliance.client import Client
from appliance.gateway.voices import stored_name
from tests.gateway.conftest import NAMED, SAID, Answer, Gateway, Guarded, gateway_of
from tests.gateway.sockets import connected
from tests.harness.daemons import reference_wav

PATH = "/v1/audio/voices"
BOB = {"name": "bob", "transcript": SAID}
BOUNDARY = "a-b-c"


def form(fields: Mapping[str, str], audio: bytes | None, part: str = "audio") -> bytes:
    """multipart/form-data, RFC 7578."""
    parts = [f'name="{name}"\r\n\r\n{value}'.encode() for name, value in fields.items()]
    if audio is not None:
        head = f'name="{part}"; filename="a.wav"\r\nContent-Type: audio/wav\r\n\r\n'
        parts.append(head.encode() + audio)
    begin = f"--{BOUNDARY}\r\nContent-Disposition: form-data; ".encode()
    return b"".join(begin + one + b"\r\n" for one in parts) + f"--{BOUNDARY}--\r\n".encode()


def upload(
    gateway: Gateway,
    fields: Mapping[str, str],
    audio: bytes | None,
    part: str = "audio",
    path: str = PATH,
    **headers: str,
) -> Answer:
    kind = f"multipart/form-data; boundary={BOUNDARY}"
    return gateway.ask(path, form(fields, audio, part), content_type=kind, **headers)


def test_a_text_may_change_its_voice_over_http_and_websockets_if_allowed(gateway: Gateway) -> None:
    with Client(gateway.daemon.address) as client:
        client.add_voice("bob", reference_wav(2.0), SAID)
        said = {"input": "Hi there.", "voice": "bob", "seed": 7, "nfe": 1, "response_format": "pcm"}
        bob = gateway.ask("/v1/audio/speech", said).body
        tagged = {**said, "input": f"[voice:bob] {said['input']}", "voice": "ann"}
        allowed = gateway.ask("/v1/audio/speech", {**tagged, "voice_tags": True})
        assert allowed.body == bob and "x-ignored-parameters" not in allowed.headers
        assert bob != gateway.ask("/v1/audio/speech", tagged).body
        query = "stream-input?output_format=pcm_24000&seed=7&nfe=1&voice_tags=true"
        heard = []
        for voice, text in (("ann", tagged["input"]), ("bob", said["input"])):
            with connected(gateway.address, f"/v1/text-to-speech/{voice}/{query}") as socket:
                socket.send({"text": f"{text} "}, {"text": ""})
                heard.append(b"".join(base64.b64decode(one.get("audio") or "") for one in socket))
        assert heard[0] == heard[1] != b""


def test_a_voice_is_stored_heard_and_removed(gateway: Gateway) -> None:
    fields = {"name": "Zoë (live)", "transcript": SAID, "consent": "hers, by mail"}
    made = upload(gateway, fields, reference_wav())
    assert (made.status, made.json["id"], made.json["name"]) == (201, "zoe-live", "Zoë (live)")
    with Client(gateway.daemon.address) as client:
        stored = client.voice("zoe-live")
    assert (stored.transcript, stored.consent_note) == (SAID, "hers, by mail")
    assert stored.display_name == "Zoë (live)"
    assert made.json["sha256"] == stored.sha256 and made.json["warnings"] == list(stored.warnings)
    assert {"id": "zoe-live", "name": "Zoë (live)", "styles": []} in gateway.ask(PATH).json["voices"]
    spoken = gateway.ask("/v1/audio/speech", {"input": "Hi.", "voice": "zoe-live", "nfe": 1})
    assert spoken.status == 200 and len(spoken.body) > 1_000
    removed = gateway.ask(f"{PATH}/Zoe-live", method="DELETE")
    assert (removed.status, removed.json["deleted"]) == (200, True)
    assert gateway.ask(f"{PATH}/zoe-live", method="DELETE").status == 404


def test_a_form_may_be_checked_before_it_is_stored(gateway: Gateway) -> None:
    fields = {**BOB, "transcript": "Bo."}
    for more in ({}, {"style": "happy"}):
        before = gateway.ask(PATH).json
        checked = upload(gateway, {**fields, **more, "validate_only": "true"}, reference_wav(3.5))
        assert gateway.ask(PATH).json == before
        stored = upload(gateway, {**fields, **more}, reference_wav(3.5))
        assert (checked.status, stored.status) == (200, 201)
        one, other = ((a.json["styles"][0] if more else a.json)["warnings"] for a in (checked, stored))
        assert one == other and "the transcript probably lacks words" in " ".join(one)
        assert ("bob", ["happy"] if more else []) in [
            (voice["id"], voice["styles"]) for voice in gateway.ask(PATH).json["voices"]
        ]


def test_a_style_is_stored_heard_and_removed(gateway: Gateway) -> None:
    assert upload(gateway, {"name": "Zoë", "transcript": SAID}, reference_wav()).status == 201
    fields = {"name": "Zoë", "style": "Happy", "transcript": SAID, "consent": "hers"}
    made = upload(gateway, fields, reference_wav(2.5))
    (style,) = made.json["styles"]
    assert (made.status, made.json["id"]) == (201, "zoe")
    assert (style["name"], style["transcript"], style["consent_note"]) == ("happy", SAID, "hers")
    assert style["sha256"] != made.json["sha256"]
    listed = {voice["id"]: voice["styles"] for voice in gateway.ask(PATH).json["voices"]}
    assert listed["zoe"] == ["happy"] and listed["ann"] == listed["shimmer"] == []
    speech = {"voice": "zoe", "nfe": 1, "seed": 1, "response_format": "pcm"}
    text = "Thanks for the follow."
    tagged_text = f"[happy] {text}"
    ways: tuple[dict[str, str], ...] = ({}, {"input": tagged_text}, {"style": "Happy"}, {"style": "neutral"})
    sent = ({**speech, "input": text, **way} for way in ways)
    own, tagged, chosen, mapped = (gateway.ask("/v1/audio/speech", one) for one in sent)
    assert tagged.body == chosen.body != own.body == mapped.body
    refused = gateway.ask("/v1/audio/speech", {**speech, "input": text, "style": "angry"})
    assert (refused.status, refused.json["error"]["param"]) == (400, "style")
    assert "it has neutral, happy" in refused.json["error"]["message"]
    assert gateway.ask("/tts?text=Hi.&ref_audio_path=zoe&style=angry").status == 400
    assert upload(gateway, {**fields, "name": "nobody"}, reference_wav()).status == 404
    assert upload(gateway, {**fields, "style": "neutral"}, reference_wav()).status == 400
    assert upload(gateway, fields, reference_wav(2.7)).status == 409
    removed = gateway.ask(f"{PATH}/zoe/styles/HAPPY", method="DELETE")
    assert (removed.status, removed.json["style"], removed.json["deleted"]) == (200, "happy", True)
    assert gateway.ask(f"{PATH}/zoe/styles/happy", method="DELETE").status == 404


def test_other_names_of_fields_are_accepted(gateway: Gateway) -> None:
    for part, words in (("audio_sample", "ref_text"), ("file", "text")):
        made = upload(gateway, {"name": "other", words: SAID}, reference_wav(), part)
        assert (made.status, made.json["transcript"]) == (201, SAID)


@pytest.mark.parametrize(("fields", "audio", "status", "message"), [
    (BOB, None, 400, "audio: is missing"), ({"name": "bob"}, reference_wav(), 400, "transcript: is empty"),
    ({"transcript": SAID}, reference_wav(), 400, "name: must be 1 to 64"),
    ({"name": "声", "transcript": SAID}, reference_wav(), 400, "name: must be 1 to 64"),
    (BOB, b"no sound", 400, "audio"),
    ({**BOB, "transcript": "x" * 20_000}, reference_wav(), 400, "the form: "),
    ({f"f{n}": "" for n in range(20)}, reference_wav(), 400, "the form: Too many fields"),
])  # fmt: skip
def test_a_form_that_is_wrong_is_named(
    gateway: Gateway, fields: dict[str, str], audio: bytes | None, status: int, message: str
) -> None:
    answer = upload(gateway, fields, audio)
    assert answer.status == status and message in answer.json["error"]["message"], answer.body
    assert gateway.ask(f"{PATH}/bob", method="DELETE").status == 404


def test_bodies_that_are_no_form_and_too_long_ones_are_refused(gateway: Gateway) -> None:
    assert gateway.ask(PATH, {"name": "bob"}).status == 415
    charsets = (f"; boundary={BOUNDARY}; charset={name}" for name in ("undefined", "punycode", "rot13"))
    for kind in ("", f"; boundary={BOUNDARY}", *charsets):
        for body in (b"nothing of it", form({"name": "zoë"}, None)):
            assert gateway.ask(PATH, body, content_type=f"multipart/form-data{kind}").status == 400
    assert upload(gateway, BOB, bytes(17 << 20)).status == 413


def test_a_page_of_another_site_stores_no_voice(gateway: Gateway) -> None:
    evil = {"origin": "https://evil.example"}
    assert upload(gateway, BOB, reference_wav(), **evil).status == 403
    assert upload(gateway, BOB, reference_wav(), origin=NAMED).status == 201
    with gateway_of(gateway.daemon, origins=["*"]) as opened:
        assert opened.ask(PATH, **evil).status == 200
        assert upload(opened, BOB, reference_wav(), **evil).status == 403
        assert opened.ask(f"{PATH}/bob", method="DELETE", **evil).status == 403
        for method, status in (("GET", 200), ("DELETE", 403)):
            asked = {**evil, "access_control_request_method": method}
            assert opened.ask(f"{PATH}/bob", method="OPTIONS", **asked).status == status


def test_the_role_voices_is_needed(guarded: Guarded) -> None:
    for role, status in ((Role.SPEAK, 403), (Role.VOICES, 201)):
        bearer = {"authorization": f"Bearer {guarded.held[role]}"}
        assert upload(guarded.gateway, BOB, reference_wav(), **bearer).status == status
        assert guarded.ask(PATH, role).status == 200
    for role, status in ((Role.SPEAK, 403), (Role.VOICES, 200)):
        assert guarded.ask(f"{PATH}/bob", role, method="DELETE").status == status


def test_names_are_converted_to_storable_ones() -> None:
    names = {"Anna": "anna", "my_voice-2": "my_voice-2", "Jean-Luc Ménard": "jean-luc-menard", "a.b!": "a-b"}
    assert {name: stored_name(name) for name in names} == names
