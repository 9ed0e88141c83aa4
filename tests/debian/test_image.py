"""The container image: built by buildah on a Debian of this run, and both services of compose.yaml in it."""

import json
import os
import re
import shutil
import subprocess
import tempfile
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from appliance.config import Config
from appliance.engine.cases import FEMALE
from tests.debian.made import ROOT, SOURCES, run
from tests.harness.daemons import finished
from tests.harness.patience import PATIENCE_S, until

COMPOSE = yaml.safe_load((ROOT / "scripts/container/compose.yaml").read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]


def unit(name: str) -> str:
    return (ROOT / "systemd" / name).read_text()


@pytest.mark.once
def test_compose_uses_the_probes_and_the_units_folders() -> None:
    config = Config()
    probes = {name: "".join(service["healthcheck"]["test"][-2:]) for name, service in SERVICES.items()}
    assert f"127.0.0.1:{probes['daemon']}" == f"{config.server.metrics}/readyz"
    assert f"127.0.0.1:{probes['gateway']}" == f"{config.gateway.listen}/livez"
    for service in SERVICES.values():
        folders = {volume.partition(":")[2] for volume in service["volumes"]}
        assert folders == {"/var/lib/f5-appliance", "/var/cache/f5-appliance", "/run/f5-appliance"}
    containerfile = (ROOT / "scripts/container/Containerfile").read_text()
    serve, gateway = (
        re.findall(r"ExecStart=.* /usr/bin/appliance (.*)", unit(f"f5-{name}.service"))[0].split()
        for name in ("appliance", "gateway")
    )
    assert f"CMD {json.dumps(serve)}" in containerfile and SERVICES["gateway"]["command"] == gateway
    for line in re.findall(r"^Environment=CUDA_CACHE_PATH=.*", unit("f5-appliance.service"), re.MULTILINE):
        assert line.replace("Environment=", "ENV ") in containerfile


@pytest.fixture(scope="module")
def image() -> Iterator[str]:
    """Name of a working container of the image, in separate storage on a disk: it takes 2 GB."""
    if os.geteuid() != 0 or not shutil.which("buildah"):
        pytest.skip("needs root and buildah")
    with tempfile.TemporaryDirectory(dir="/var/tmp") as scratch, pytest.MonkeyPatch.context() as patch:
        folder = Path(scratch)
        storage = f'[storage]\ndriver = "overlay"\ngraphroot = "{folder}/root"\nrunroot = "{folder}/run"\n'
        (folder / "storage.conf").write_text(storage)
        for name, value in {
            "CONTAINERS_STORAGE_CONF": str(folder / "storage.conf"),
            "BUILDAH_ISOLATION": "chroot",
            "DOCKER_HOST": "unix:///none",
            "BASE": "localhost/f5-base",
            "OUT": str(folder / "image.tar"),
        }.items():
            patch.setenv(name, value)
        run("mmdebstrap", "--quiet", "--variant=minbase", "bookworm", folder / "base.tar", SOURCES)
        base = run("buildah", "from", "scratch").strip()
        run("buildah", "add", "--quiet", base, folder / "base.tar", "/")
        run("buildah", "commit", "--quiet", "--rm", base, "f5-base")
        build = (ROOT / "scripts/build-image", "--python", "3.11", "--arch", "amd64", "--compress", "none")
        run(*build)
        yield run("buildah", "from", f"docker-archive:{folder}/image.tar").strip()
        run("buildah", "rm", "--all")


@contextmanager
def started(container: str, command: list[str]) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(["buildah", "run", container, "--", "/usr/bin/appliance", *command])
    try:
        yield process
    finally:
        subprocess.run(["pkill", "--signal", "TERM", "--full", f"^/usr/bin/python.* {' '.join(command)}"])
        process.wait(PATIENCE_S)


@pytest.mark.once
@pytest.mark.slow
@pytest.mark.packaging
def test_daemon_and_gateway_speak_as_the_package_s_user(image: str) -> None:
    config = json.loads(run("buildah", "inspect", image))["Docker"]["config"]
    assert config["User"] == "f5-appliance" and config["Entrypoint"] == ["/usr/bin/appliance"]
    assert set(config["Volumes"]) == {"/var/lib/f5-appliance", "/var/cache/f5-appliance"}

    def healthy(service: str) -> bool:
        _, *probe = (word.replace("$$", "$") for word in SERVICES[service]["healthcheck"]["test"])
        return finished("buildah", "run", image, "--", *probe).returncode == 0

    assert not healthy("daemon")
    with started(image, config["Cmd"]):
        until(lambda: healthy("daemon"))
        with started(image, SERVICES["gateway"]["command"]):
            until(lambda: healthy("gateway"))
            body = json.dumps({"input": "Hello from a container.", "voice": FEMALE}).encode()
            with urllib.request.urlopen(f"http://{Config().gateway.listen}/v1/audio/speech", body) as reply:
                assert len(reply.read()) > 4_000
    assert not run("buildah", "run", image, "--", "cat", "/etc/machine-id").strip()
