"""Arguments that several commands share, and the values read from them."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from appliance.box import paths
from appliance.box.show.streams import plain

if TYPE_CHECKING:
    from appliance.client import Client, Credentials
    from appliance.config import Config

FAILED = 1
"""Exit status of every command except `serve` and `check`. argparse exits with 2."""
TOKEN = "APPLIANCE_TOKEN"


class Failure(Exception):
    """Failure of a command. The message is one readable line."""


def sysroot() -> tuple[str, str]:
    """Folders that tests use in place of / and of the system's tools."""
    return os.environ.get("F5_SYSROOT", ""), os.environ.get("F5_TOOLS", "")


def add_address(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--address", help="host:port or unix:PATH of the daemon; absent: this box's")
    parser.add_argument(
        "--authority", type=Path, metavar="PEM", help="speak TLS with a daemon of this certificate"
    )
    parser.add_argument("--token-file", type=Path, metavar="FILE", help=f"absent: the variable {TOKEN}")
    parser.add_argument("--certificate", type=Path, metavar="PEM", help="client certificate, if needed")
    parser.add_argument("--key", type=Path, metavar="PEM", help="key of that certificate")


def client(options: argparse.Namespace) -> Client:
    from appliance.client import Client

    return Client(options.address, credentials(options))


def credentials(options: argparse.Namespace) -> Credentials:
    from appliance.client import Credentials

    token = read_file(options.token_file).decode("ascii", "replace") or os.environ.get(TOKEN, "")
    return Credentials(
        read_file(options.authority), token.strip(), read_file(options.certificate), read_file(options.key)
    )


def own_address(options: argparse.Namespace) -> str:
    """Address of this box's daemon: its TCP address for a certificate or a token, else `daemon_address`."""
    from appliance.access.reach import daemon_address

    server = own_config(None, ()).server
    is_stranger = getattr(options, "authority", None) or getattr(options, "token_file", None)
    return server.listen if is_stranger else daemon_address(server)


def own_config(path: Path | None, overrides: Iterable[str]) -> Config:
    """Configuration at `path`, else the installed one, else the defaults. Raises ConfigError."""
    from appliance import config

    installed = Path(paths.CONFIG)
    return config.load(path or (installed if installed.is_file() else None), overrides)


def read_file(path: Path | None) -> bytes:
    try:
        return b"" if path is None else path.read_bytes()
    except OSError as error:
        raise Failure(f"{path}: {error.strerror}") from error


def add_config(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--config", type=Path, help="YAML file; absent: the defaults")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="SECTION.KEY=VALUE",
        help="overrides the file; repeatable",
    )


def print_line(line: object, file: TextIO | None = None) -> None:
    """Print without control characters, because texts and names come from strangers."""
    print(plain(str(line)), file=file, flush=True)


def add_pronounce(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--pronounce", action="append", default=[], metavar="WORD=SAID", help="spoken form; repeatable"
    )


def pronunciations(options: argparse.Namespace) -> dict[str, str]:
    words = {}
    for pair in options.pronounce:
        word, equals, spoken = pair.partition("=")
        if not equals:
            raise Failure(f"--pronounce {pair}: must be WORD=SAID")
        words[word] = spoken
    return words
