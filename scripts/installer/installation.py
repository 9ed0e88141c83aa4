"""The installation: every step in order, each of which knows whether it is done."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from appliance.box.platform import Platform, identify
from appliance.box.tools import Ran
from appliance.box.versions import tensorrt
from scripts.installer import bundles, environment, preflight, releases, speaking, switching, system, wheels
from scripts.installer.actions import Action, Failure, Tell, perform
from scripts.installer.layout import BUNDLE, FOLDERS, RUN, SYSUSERS, TMPFILES, USER
from scripts.installer.releases import Wanted, linked
from scripts.installer.source import Source
from scripts.installer.target import Content, Target, has_folder, holds, put, put_folder

DONE, FAILED, REFUSED, UNHEALTHY = 0, 1, 2, 3
"""Exit status. 3: installed, and health finds something that fails."""
APT_S = 1_800.0
APT_LOCK_S = 300
"""How long to wait for another apt: a box that was just booted often updates itself."""
QUICK_S = 60.0


@dataclass(frozen=True)
class Options:
    """What a technician can say."""

    bundle: Path | None = None
    """None keeps the one that is there, or takes the one that comes with the checkout."""
    voice: speaking.Voice | None = None
    offline: Path | None = None
    """A folder of scripts/make-offline-bundle; None takes wheels from the network."""
    python: str = "/usr/bin/python3"
    dry_run: bool = False
    force_platform: bool = False
    start: bool = True
    """Start services and prove them; never in a staged tree."""


@dataclass(frozen=True)
class Installation:
    """One run of it."""

    target: Target
    source: Source
    options: Options
    tell: Tell
    gate: switching.Gate = field(default_factory=switching.Start)

    def run(self) -> int:
        """Install what is missing; the exit status. Does not raise."""
        try:
            wanted = self._wanted()
            self._announce(wanted)
            if refused := list(self._refusals(wanted)):
                for failure in refused:
                    self.tell(f"refused: {_line(failure)}")
                return REFUSED
            return self._perform(wanted)
        except Failure as failure:
            self.tell(f"error: {_line(failure)}")
            return FAILED

    def _wanted(self) -> Wanted:
        folder = wheels.read(self.options.offline) if self.options.offline else None
        python = environment.interpreter(self.target.box.tools, self.options.python)
        return Wanted(self.source, python, identify(self.target.box.root), folder, self._tensorrt())

    def _tensorrt(self) -> str | None:
        return ".".join(map(str, tensorrt(self.target.box.root))) or None

    def _announce(self, wanted: Wanted) -> None:
        box = f"{_platform(wanted.platform)}, Python {wanted.python.version}"
        self.tell(f"f5-appliance {wanted.source.version} for {box}")
        for warning in preflight.warnings(self.target, wanted):
            self.tell(f"warning: {warning}")

    def _refusals(self, wanted: Wanted) -> Iterator[Failure]:
        yield from preflight.refusals(self.target, wanted, self.options.bundle, self.options.force_platform)

    def _perform(self, wanted: Wanted) -> int:
        dry_run = self.options.dry_run
        count = perform(self._steps(wanted), self.tell, dry_run=dry_run)
        started = self.options.start and not self.target.staged
        if started and not (dry_run and not linked(self.target)):
            proof = speaking.actions(
                self.target, self.source, self.options.voice, self.tell, changed=bool(count)
            )
            count += perform(proof, self.tell, dry_run=dry_run)
        elif started:
            self.tell("would start the services, register a voice, speak a sentence, and print health")
        if not count:
            self.tell("nothing to do")
        if not started or dry_run:
            return DONE
        return UNHEALTHY if speaking.health(self.target, self.tell) == 2 else DONE

    def _steps(self, wanted: Wanted) -> Iterator[Action]:
        """In order; what a step finds depends on those before it, so that they are made one by one."""
        target = self.target
        yield from self._packages(wanted)
        wanted = replace(wanted, tensorrt=self._tensorrt())  # the packages may have brought another
        yield from _users(target, self.source)
        yield from _folders(target)
        name, _ = releases.choose(target, wanted)
        bundle = self._bundle()
        yield from self._release(wanted, name, bundle)
        if bundle is not None:
            yield self._bring(bundle, name)
        yield self._switch(name, bundle is not None)
        yield Action(
            "old releases",
            f"remove all releases but the {releases.KEPT} last",
            lambda: not releases.superfluous(target, name),
            lambda: releases.prune(target, name),
        )

    def _bundle(self) -> Path | None:
        """The bundle to bring; None when the one that is there stays."""
        given = self.options.bundle
        if given is not None:
            return None if bundles.holds_bundle(self.target, given) else given
        return None if bundles.has_bundle(self.target) else self.source.bundle[0]

    def _packages(self, wanted: Wanted) -> Iterator[Action]:
        """The system's packages, on a box that runs: without a network what is missing is only said."""
        tools, python = self.target.box.tools, wanted.python.path
        if self.target.staged:
            return
        if wanted.wheels is None:
            yield self._apt("python3-venv", lambda: environment.can_import(tools, python, "ensurepip"))
        if not wanted.platform.is_jetson:
            return
        binding = "python3-libnvinfer"
        if wanted.wheels is None:
            yield self._apt(
                binding, lambda: environment.can_import(tools, python, "tensorrt"), required=False
            )
        elif not environment.can_import(tools, python, "tensorrt"):
            self.tell(
                f"warning: TensorRT's Python binding is missing; with a network: apt-get install {binding}"
            )

    def _apt(self, package: str, done: Callable[[], bool], *, required: bool = True) -> Action:
        def install() -> None:
            ran = self._apt_get("install", "--yes", "--no-install-recommends", package)
            if ran.code:
                # A box as flashed has no lists, and old ones name what the servers no longer have.
                self._apt_get("update")
                ran = self._apt_get("install", "--yes", "--no-install-recommends", package)
            if ran.code and required:
                raise Failure(ran.told, f"apt-get update && apt-get install {package}; or use --offline DIR")
            if ran.code:
                self.tell(f"warning: {package} is missing, and speech is computed without it: {ran.told}")

        return Action("packages", f"install {package} with apt-get", done, install)

    def _apt_get(self, *arguments: str) -> Ran:
        wait = ("-o", f"DPkg::Lock::Timeout={APT_LOCK_S}")
        return self.target.box.tools.run("apt-get", *wait, *arguments, timeout_s=APT_S)

    def _release(self, wanted: Wanted, name: str, bundle: Path | None) -> Iterator[Action]:
        target = self.target

        def make() -> None:
            # What is left over goes first: it may be all that is in the way.
            releases.remove_half(target)
            releases.prune(target)
            bundles.settle(target)
            if failure := preflight.too_little_space(target, wanted, bundle):
                raise failure
            contents = system.files(wanted.source.folder, wanted.source.released)
            records = {path: content.record for path, content in contents.items()}
            releases.build(target, name, wanted, records)

        whence = f"wheels in {wanted.wheels.folder}" if wanted.wheels else "the network"
        words = f"build release {name} with its environment, from {whence} (minutes)"
        yield Action("release", words, lambda: releases.choose(target, wanted) == (name, True), make)

    def _bring(self, bundle: Path, name: str) -> Action:
        noise = bundle == self.source.bundle[0] and not self.source.bundle[1]
        words = f"copy the bundle {bundle} to {BUNDLE}"
        words += ", which ONLY MAKES NOISE; pass a real one with --bundle DIR" if noise else ""
        target = self.target
        return Action("bundle", words, lambda: False, lambda: bundles.bring(target, bundle, name))

    def _switch(self, name: str, bundle: bool) -> Action:
        target = self.target
        gate = self.gate if self.options.start and not target.staged else None

        def done() -> bool:
            proven = gate is None or not switching.unproven(target)
            return proven and not bundle and name in releases.names(target) and system.in_place(target, name)

        return Action(
            "switch",
            f"put release {name} in place" + (", start it and see that it is well" if gate else ""),
            done,
            lambda: switching.switch(target, name, self.tell, gate, bundle=bundle),
        )


def _users(target: Target, source: Source) -> Iterator[Action]:
    """The service's user and its runtime folder, by systemd's own programs."""
    folder = target.box.root.folder
    root = () if folder == Path("/") else (f"--root={folder}",)
    for name, path, program, done in (
        ("users", SYSUSERS, "systemd-sysusers", lambda: target.has_user(USER)),
        ("runtime folder", TMPFILES, "systemd-tmpfiles", lambda: target.box.root.exists(RUN)),
    ):
        content = Content((source.folder / _conf(path)).read_bytes())
        yield Action(
            name,
            f"write {path} and run {program}",
            _both(target, path, content, done),
            _applied(target, path, content, program, *root, *(("--create",) if path == TMPFILES else ())),
        )


def _conf(path: str) -> str:
    return f"systemd/f5-appliance.{'sysusers' if path == SYSUSERS else 'tmpfiles'}.conf"


def _both(target: Target, path: str, content: Content, done: Callable[[], bool]) -> Callable[[], bool]:
    return lambda: holds(target, path, content) and done()


def _applied(target: Target, path: str, content: Content, program: str, *options: str) -> Callable[[], None]:
    def apply() -> None:
        put(target, path, content)
        # Within its root the program finds the file by its name, as it does at boot.
        ran = target.box.tools.run(program, *options, Path(path).name, timeout_s=QUICK_S)
        if ran.code:
            raise Failure(ran.told, f"run {program} {path} and see what it says")

    return apply


def _folders(target: Target) -> Iterator[Action]:
    for folder in FOLDERS:
        yield Action(
            "folders",
            f"make {folder.path} ({folder.owner}:{folder.group}, {folder.mode:04o})",
            lambda folder=folder: target.has_user(USER) and has_folder(target, folder),  # type: ignore[misc]
            lambda folder=folder: put_folder(target, folder),  # type: ignore[misc]
        )


def _line(failure: Failure) -> str:
    return f"{failure.what}; {failure.remedy}" if failure.remedy else failure.what


def _platform(platform: Platform) -> str:
    if not platform.is_jetson:
        return "a machine that is no Jetson"
    jetpack = f"JetPack {platform.jetpack}" if platform.jetpack else "unknown JetPack"
    module = platform.module or "unknown module"
    return f"{platform.model or 'a Jetson'} ({module}, {jetpack}, {platform.release})"
