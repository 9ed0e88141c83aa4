"""What the tests of the installer share."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

import pytest

from scripts.installer import environment
from tests.fakes.jetson import Jetson
from tests.install.small import Workshop, unpack

PROGRAMS = ("systemd-sysusers", "systemd-tmpfiles")


@pytest.fixture(scope="session")
def workshop(tmp_path_factory: pytest.TempPathFactory) -> Workshop:
    """Small checkouts, their wheels, and what was built of them."""
    for program in PROGRAMS:
        if shutil.which(program) is None:
            pytest.skip(f"{program} is not installed: users and folders cannot be made")
    return Workshop(tmp_path_factory.mktemp("workshop"))


@pytest.fixture
def jetson(tmp_path: Path) -> Jetson:
    """A 64 GB box with JetPack 6, as flashed."""
    return Jetson(tmp_path / "jetson", "jp6-0005")


@pytest.fixture(autouse=True)
def no_flush(monkeypatch: pytest.MonkeyPatch) -> None:
    """A box of paper cannot lose its power: the machine's own disks need not be flushed for it."""
    monkeypatch.setattr(os, "sync", lambda: None)
    monkeypatch.setattr(os, "fsync", lambda _: None)


@pytest.fixture(autouse=True)
def own_temporary_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The first words stay where they were spoken, for a technician to hear; not those of a test."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


@pytest.fixture
def without_pip(monkeypatch: pytest.MonkeyPatch) -> None:
    """Environments are unpacked rather than installed; test_install.py has the real thing."""
    monkeypatch.setattr(environment, "build", unpack)
