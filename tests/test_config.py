"""The configuration: its defaults, its files, and its messages for mistakes."""

import dataclasses
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from appliance import config
from appliance.box.paths import CLOCKS
from appliance.config import USUAL_NFE, Config, EngineConfig, load
from appliance.errors import ConfigError
from tests.harness.rows import rows

CONFIGS = sorted((Path(__file__).resolve().parent.parent / "configs").glob("*.yaml"))


def plain(value: Any) -> Any:
    return {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.name)
def test_every_file_parses(path: Path) -> None:
    assert isinstance(load(path), Config)


def test_appliance_yaml_shows_every_key_with_its_default() -> None:
    path = next(path for path in CONFIGS if path.name == "appliance.yaml")
    shown = yaml.safe_load(path.read_text("utf-8"))
    assert load(path) == Config()
    assert {section: sorted(keys) for section, keys in shown.items()} == {
        f.name: sorted(plain(getattr(Config(), f.name))) for f in dataclasses.fields(Config)
    }


def test_names_that_must_not_drift() -> None:
    defaults = load(None)
    assert (defaults.synthesis.nfe, USUAL_NFE) == (None, 7)
    assert defaults.server.listen == "127.0.0.1:50051"
    assert load(None, ["server.listen=[::1]:50051"]).server.listen == "[::1]:50051"
    assert defaults.server.socket == "/run/f5-appliance/grpc.sock"
    assert defaults.server.metrics == "127.0.0.1:9464"
    assert defaults.gateway.listen == config.LOOPBACK_HTTP == "127.0.0.1:8880"
    assert defaults.wyoming.listen == "127.0.0.1:10200"
    assert defaults.server.max_receive_bytes == 16 * 1024 * 1024
    assert str(defaults.voices.folder) == "/var/lib/f5-appliance/voices"
    assert str(defaults.engine.cache) == "/var/cache/f5-appliance/engines"
    assert str(defaults.voices.cache) == "/var/cache/f5-appliance"
    assert str(defaults.device.clocks) == CLOCKS == "/run/f5-appliance/clocks.json"
    assert [f.name for f in dataclasses.fields(Config)] == str.split(
        "bundle engine synthesis text audio voices cache scheduler server gateway wyoming device log"
    )


ADDRESSES = ("::1:50051", "[::1", "[::1]", "::1", "[::1]50051", "[x]:1", "[127.0.0.1]:1", ":1", "a:", "a:b")
ADDRESSES += ("a:1:2", "a b:1", "a/b:1", "[::1]:-1", "a:99999", "[[::1]]:1", "a:\u0661")
PATHS = {
    "server": ("socket", "admin_socket", "tokens", "tls_certificate", "tls_key", "tls_clients"),
    "bundle": ("path",),
    "engine": ("cache",),
    "voices": ("folder", "cache"),
    "device": ("sysroot", "clocks"),
    "gateway": ("daemon",),
}


ADDRESSED = ("server.listen", "server.metrics", "server.agent")
ADDRESSED += ("gateway.listen", "gateway.daemon", "wyoming.listen")


@pytest.mark.parametrize(("text", "message"), [
    *rows(__file__, "config_refused.jsonl"),
    *((f"{section}: {{{key}: '{address}'}}", f"{key}: must be host:port or [IPv6 address]:port")
      for address in ADDRESSES for section, key in (place.split(".") for place in ADDRESSED)),
    *((f'{section}: {{{key}: "{path}"}}', f"{key}: must be a path, without NUL and half characters")
      for path in ("/a\\0b", "unix:/a\\0b") for section, keys in PATHS.items() for key in keys),
])  # fmt: skip
def test_a_mistake_is_named_with_the_allowed_values(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        load(path)
    assert str(caught.value).startswith(str(path))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("text", "backend", "lines"), [
    ("scheduler: {policy: deadline}", "auto", []),
    ("scheduler: {policy: fifo}", "auto", ["scheduler.policy: fifo was removed in 0.25, .* delete the key"]),
    ("scheduler: {proof: idle}", "auto", ["scheduler.proof was removed in 0.31: .* delete the key"]),
    ("scheduler: {proof: 'off'}", "auto", ["scheduler.proof was removed in 0.31: .* delete the key"]),
    ("engine: {backend: openvino}", "ort-cpu",
     ["engine.backend: openvino was removed in 0.25, .* int8 bundle"]),
])  # fmt: skip
@pytest.mark.parametrize("in_file", [True, False], ids=["file", "set"])
def test_a_setting_that_was_removed_is_replaced_and_named(
    tmp_path: Path, text: str, backend: str, lines: list[str], in_file: bool
) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(f"{text}\n" if in_file else "")
    [(section, [(key, value)])] = [(s, [*keys.items()]) for s, keys in yaml.safe_load(text).items()]
    told: list[str] = []
    loaded = load(path, () if in_file else [f"{section}.{key}={value}"], told.append)
    assert loaded == dataclasses.replace(Config(), engine=EngineConfig(backend=backend))  # type: ignore[arg-type]
    assert len(told) == len(lines)
    for line, words in zip(told, lines, strict=True):
        assert re.fullmatch(f"{re.escape(str(path))}: {words}", line)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"absent\.yaml: no such file"):
        load(tmp_path / "absent.yaml")


def test_an_empty_file_and_an_empty_section_are_the_defaults(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text("")
    assert load(path) == Config()
    path.write_text("synthesis:\n  # nfe: 5\n")
    assert load(path) == Config()


def test_set_goes_over_the_file(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text("synthesis: {nfe: 5, seed: 1}\nscheduler: {weights: {main: 3, overlay: 0.5}}")
    changed = load(path, ["synthesis.nfe=16", "server.socket=", "synthesis.guidance=1", "bundle.path=/b"])
    assert (changed.synthesis.nfe, changed.synthesis.seed, changed.synthesis.guidance) == (16, 1, 1.0)
    assert changed.server.socket == ""
    assert changed.bundle.path == Path("/b")
    assert changed.scheduler.weights == {"main": 3.0, "overlay": 0.5}


@pytest.mark.parametrize(("override", "message"), [
    *(
        (odd, r"must be section\.key=value")
        for odd in ("synthesis.nfe", "nfe=5", "=5", ".nfe=5", "synthesis.=5")
    ),
    ("synthesis.nef=5", "unknown key nef"),
])  # fmt: skip
def test_set_without_a_known_section_and_key_and_a_value_is_refused(override: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load(None, [override])


def test_addresses() -> None:
    assert config.split_address("listen", "[::1]:50051") == ("[::1]", 50051)
    assert config.split_address("listen", "0.0.0.0:0") == ("0.0.0.0", 0)
