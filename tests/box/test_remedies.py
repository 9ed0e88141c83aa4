"""Remedies that repair: each fault, health's finding, and the box after a technician typed the remedy."""

import dataclasses
import errno
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from appliance.box import paths
from appliance.box.checks.finding import Level, exit_code
from appliance.box.checks.runner import run_checks
from appliance.box.clocks import boots
from appliance.box.clocks.pinning import check, lock
from appliance.box.clocks.reason import Reason
from appliance.box.paths import CONFIG, NVPMODEL_CONF, NVPMODEL_STATUS
from appliance.box.show import clock_status
from tests.box.cases import FAIL, PASS, WARN, Case
from tests.box.technician import follow, nvpower
from tests.fakes.jetson.board import Jetson
from tests.fakes.jetson.faults import FaultyRoot
from tests.harness.boxes import lay, quick, well
from tests.harness.rows import rows

pytestmark = [pytest.mark.slow, pytest.mark.once]

CODES = {"pinned": 0, "unpinned": 1, "unknown": 1, "reboot_pending": 3, "unsupported": 4}
SITE = f"below `device:` in {CONFIG} the line `  power_mode: NAME`"
GUESSED = "guessed"
SEEN = dict(rows(__file__, "seen.jsonl"))
"""Sources for the facts that a row relies on; no row may rest on a guess."""


def conf(old: str, new: str) -> Callable[[Jetson], str]:
    """nvpmodel.conf with another text somewhere."""
    return lambda jetson: jetson.read(NVPMODEL_CONF).replace(old, new)


CORES = "CPU_ONLINE CORE_11 1\n", "CPU_ONLINE CORE_12 1\n"
more_cores = conf(CORES[0], "".join(CORES))
slower_gpu = conf("GPU MAX_FREQ -1", "GPU MAX_FREQ 918000000")
by_an_oem = conf("NAME=MAXN >", "NAME=OEM_60W >")
capped_by_the_maker = conf("GPU MAX_FREQ -1", "GPU MAX_FREQ 1020000000")


def foreign(
    change: Callable[[Jetson], str], target: str = "/etc/nvpmodel/nvpmodel_p3767_0000.conf"
) -> Callable[[Jetson], None]:
    """nvpmodel.conf is NVIDIA's link to another module's file, or to `target`."""

    def arrange(jetson: Jetson) -> None:
        jetson.write(target, change(jetson))
        link = jetson.root / NVPMODEL_CONF[1:]
        link.unlink()
        link.symlink_to(target)
        nvpower(jetson)
        assert link.readlink() == Path(target), "restarting nvpower alone mends nothing"

    return arrange


def own(change: Callable[[Jetson], str]) -> Callable[[Jetson], None]:
    """nvpmodel.conf is a file of the carrier's maker."""

    def arrange(jetson: Jetson) -> None:
        text = change(jetson)
        (jetson.root / NVPMODEL_CONF[1:]).unlink()
        jetson.write(NVPMODEL_CONF, text)
        jetson.set_mode("MAXN") if "NAME=MAXN " in text and "CORE_12" not in text else None
        lock(quick(jetson))

    return arrange


def site(text: str) -> Callable[[Jetson], None]:
    return lambda jetson: jetson.write(CONFIG, text)


def site_mode(name: str, then: Callable[[Jetson], object] = lambda jetson: None) -> Callable[[Jetson], None]:
    def arrange(jetson: Jetson) -> None:
        site(f"device:\n  power_mode: {name}\n")(jetson)
        jetson.set_mode(name)
        lock(quick(jetson))
        then(jetson)

    return arrange


def raised(jetson: Jetson) -> None:
    """Limits as somebody's script raises them for a benchmark."""
    for core in range(12):
        jetson.machine.set_core(core, 2_201_600, 2_201_600)
    jetson.machine.set_gpu(1_300_500_000, 1_300_500_000)


def not_set(jetson: Jetson) -> None:
    jetson.boot()
    jetson.fault("mode_not_set")


def hot(jetson: Jetson) -> None:
    jetson.fault("thermal_throttle")
    check(quick(jetson))


def cooled(jetson: Jetson) -> None:
    jetson.heal("thermal_throttle")
    checked(jetson)


def by_the_menu(jetson: Jetson) -> None:
    jetson.process(4711, "python3", "/usr/share/nvpmodel_indicator/nvpmodel_indicator.py")
    jetson.set_mode("MODE_50W")


def silent_nvpmodel(jetson: Jetson) -> None:
    lay(jetson, "nvpmodel", "echo 'NVPM ERROR: cannot lock'; exit 255")
    jetson.path(NVPMODEL_STATUS).unlink()


def speaking_nvpmodel(jetson: Jetson) -> None:
    (jetson.bin / "nvpmodel.real").rename(jetson.bin / "nvpmodel")
    jetson.set_mode("MAXN")


def checked(jetson: Jetson) -> None:
    check(quick(jetson))


def no_debugfs(jetson: Jetson) -> None:
    jetson.path("/sys/kernel/debug").rename(jetson.root / "debugfs")
    jetson.path("/sys/kernel/debug").mkdir()
    lock(quick(jetson))


def brown_outs(jetson: Jetson) -> None:
    for _ in range(4):
        jetson.boot()
        lock(quick(jetson))


def reboot_without_help(jetson: Jetson) -> None:
    """A driver opens the GPU before nvpmodel.service, so that nvpmodel asks for the same reboot again."""
    jetson.set_mode("MODE_30W")
    lock(quick(jetson), allow_reboot=True)
    jetson.boot()
    jetson.set_mode("MODE_30W")
    lock(quick(jetson))


def other_tensorrt(jetson: Jetson) -> None:
    status = jetson.read(paths.PACKAGES)
    jetson.write(paths.PACKAGES, status.replace("10.3.0.30-1+cuda12.5", "10.13.3.9-1+cuda13.0"))
    # Installed again: the wrong one is on record as right.
    jetson.write(paths.INSTALLED, jetson.read(paths.INSTALLED).replace("10.3.0.30-1+cuda12.5", "10.13.3"))


def of_packages(old: str, new: str, *names: str) -> Callable[[Jetson], None]:
    """Change what dpkg has on record of packages."""

    def arrange(jetson: Jetson) -> None:
        stanzas = f"{jetson.read(paths.PACKAGES)}\n".split("\n\n")
        changed = [s.replace(old, new) if s.split("\n")[0][9:] in names else s for s in stanzas]
        assert changed != stanzas
        jetson.write(paths.PACKAGES, "\n\n".join(changed))

    return arrange


half_configured = of_packages(
    " ok installed", " ok half-configured", "nvidia-l4t-kernel", "nvidia-l4t-bootloader"
)
other_kernel = of_packages("36.4.3-20250107174145", "36.4.0-20240912212859", "nvidia-l4t-kernel")
FAN = "nvfancontrol.service"


def fan_without_profile(jetson: Jetson) -> None:
    """Starting it fails until the file is corrected."""
    jetson.unit(FAN, ActiveState="failed", Result="exit-code", StartFails="the control process exited")
    jetson.write("/var/lib/nvfancontrol/status", "fan1:profile:loud\n")


def node_gone(path: str, driver: bool = True) -> Callable[[Jetson], None]:
    def arrange(jetson: Jetson) -> None:
        found = jetson.path(path)
        shutil.rmtree(found) if found.is_dir() else found.unlink()
        None if driver else shutil.rmtree(jetson.path(paths.NVGPU))

    return arrange


def without_firmware(jetson: Jetson) -> None:
    jetson.write("/proc/cmdline", "root=PARTUUID=1 rw firmware_class.path=/etc/firmware console=ttyTCU0\n")
    node_gone(paths.GPU_NODE)(jetson)


def damaged_record(jetson: Jetson) -> None:
    jetson.write(paths.BOOTS, '{"boots": [{"seen_at": "x"}]}')
    lock(quick(jetson))


def fell_back(jetson: Jetson) -> None:
    boots.note_backend(quick(jetson), "tensorrt")
    jetson.boot()
    lock(quick(jetson))
    boots.note_backend(quick(jetson), "ort-cuda", ("tensorrt",))


def in_memory(jetson: Jetson) -> None:
    overlay = (
        "overlayroot / overlay rw,lowerdir=/media/root-ro,upperdir=/media/root-rw/overlay,workdir=/w 0 0\n"
    )
    jetson.write(paths.MOUNTS, f"{overlay}tmpfs-root /media/root-rw tmpfs rw,relatime 0 0\n")


def on_disk(jetson: Jetson) -> None:
    jetson.write(paths.MOUNTS, "/dev/nvme0n1p1 / ext4 rw,relatime 0 0\n")


ANEW = "sudo rm /etc/nvpmodel.conf && sudo systemctl restart nvpower nvpmodel && sudo f5-clock-lock lock"
LOCK = "sudo f5-clock-lock lock"
HAS = "it has OEM_60W, MODE_15W, MODE_30W, MODE_50W"
TABLE = [
    Case("conf of more cores", foreign(more_cores), "power_mode", FAIL, "cpu12 of /etc", ANEW, "nvpower"),
    Case("conf of more cores: cores", foreign(more_cores), "cores", WARN, "cpu12 of /etc", ANEW, "nvpower"),
    Case("conf of more cores: clocks", lambda j: (foreign(more_cores)(j), checked(j)), "clocks", FAIL,
        "cpu12 of /etc", ANEW, "nvpower", reason=Reason.WRONG_CONF),
    Case("conf of a slower GPU", foreign(slower_gpu), "power_mode", FAIL,
        "at 918 MHz, below the hardware's 1300.5 MHz", ANEW, "nvpower"),
    Case("no conf", node_gone(NVPMODEL_CONF), "power_mode", FAIL, "cannot be used",
        "sudo systemctl restart nvpower nvpmodel", "nvpower"),
    Case("the files of confs gone", lambda j: shutil.rmtree(j.path("/etc/nvpmodel")), "power_mode", FAIL,
        "cannot be used", "sudo apt install --reinstall nvidia-l4t-nvpmodel", "packages"),
    Case("the maker's conf, capped", own(capped_by_the_maker), "power_mode", FAIL, "1020 MHz", SITE, "oem",
        words={"NAME": "MAXN"}),
    Case("the maker's conf, of more cores", own(more_cores), "power_mode", FAIL, "cpu12 of /etc",
        "ask the maker", "oem",
        by_hand=own(conf(CORES[1], ""))),
    Case("this module's own file, capped",
        foreign(capped_by_the_maker, "/etc/nvpmodel/nvpmodel_p3701_0000.conf"), "power_mode", FAIL,
        "1020 MHz", SITE, "oem", words={"NAME": "MAXN"}),
    Case("conf of an OEM", own(by_an_oem), "power_mode", FAIL, HAS, SITE, "oem", words={"NAME": "OEM_60W"}),
    Case("conf of an OEM: clocks", own(by_an_oem), "clocks", FAIL, HAS, SITE, "oem",
        words={"NAME": "OEM_60W"}, reason=Reason.NO_TARGET),
    Case("site: no such mode", site("device:\n  power_mode: MODE_60W\n"), "power_mode", FAIL,
        "no power mode MODE_60W", SITE, "ours", words={"NAME": "MODE_50W"}),
    Case("site: in another form", site("device: {power_mode: MAXN}\n"), "power_mode", FAIL,
        "must be written as", SITE, "ours", words={"NAME": "MAXN"}),
    Case("site: a lesser one", site("device:\n  power_mode: MODE_50W\n"), "power_mode", FAIL,
        "held at 2201.6 MHz, above the 1497.6 MHz of MODE_50W", LOCK, "ours"),
    Case("no mode set, a lesser one of the site", site_mode("MODE_50W", not_set), "power_mode", FAIL,
        "has set no mode in this boot", LOCK, "not set", profile="jp7-0005"),
    Case("no mode set", not_set, "power_mode", FAIL, "has set no mode in this boot", LOCK, "not set",
        profile="jp7-0005"),
    Case("limits raised by hand", site_mode("MODE_50W", raised), "power_mode", FAIL,
        "held at 1300.5 MHz, above the 816 MHz of MODE_50W", LOCK, "nvgpu"),
    Case("memory's limit raised by hand",
        site_mode("MODE_15W", lambda j: (j.write(j.profile.emc_cap, "3199000000"), j.machine.pin())),
        "power_mode", FAIL, "allowed up to 3199 MHz", LOCK, "nvgpu"),
    Case("cores turned on by hand",
        site_mode("MODE_30W", lambda j: j.write( "/sys/devices/system/cpu/cpu9/online", "1\n")), "cores",
        WARN, "cpu9 online", LOCK, "nvgpu"),
    Case("heat", hot, "clocks", WARN, "held down. cpu0–cpu11: capped at 1190", "cool the box", "heat",
        cooled, reason=Reason.CAPPED),
    Case("heat: caps", hot, "caps", WARN, "1190.4 MHz of 2201.6 MHz", "cool the box", "heat", cooled),
    Case("the desktop's menu", by_the_menu, "power_mode", WARN, "nvpmodel_indicator",
        "sudo pkill -f nvpmodel_indicator. Then run: sudo f5-clock-lock lock", "menu"),
    Case("nvpmodel says nothing", silent_nvpmodel, "power_mode", FAIL, "unknown: NVPM ERROR: cannot lock",
        "sudo nvpmodel -q --verbose", "errors", speaking_nvpmodel),
    Case("railgating", lambda j: j.write(f"{j.profile.gpu_parent}/railgate_enable", "1\n"), "clocks",
        WARN, "railgate: the GPU may be powered down when idle",
        "pins them again", "nvgpu", checked),
    Case("no debugfs", no_debugfs, "clocks", FAIL, "debugfs is not mounted", "sudo mount -t debugfs",
        "debugfs"),
    Case("no jetson_clocks", node_gone("/usr/bin/jetson_clocks"), "clocks", FAIL, "is not installed",
        "nvidia-l4t-tools", "packages"),
    Case("brown-outs", brown_outs, "boots", WARN, "4 of 4 boots lost power within 1 min of pinning in MAXN",
        "Or run the module at less power: the line `  power_mode: MODE_50W`", "brown-out"),
    Case("a reboot that did not help", reboot_without_help, "reboot", FAIL, "a reboot did not set it",
        "echo pmode:0000 | sudo tee /var/lib/nvpmodel/status", "golden"),
    Case("another TensorRT, installed again", other_tensorrt, "versions", WARN, "not its JetPack's 10.3",
        "apt policy libnvinfer10", "isaac", words={"=VERSION": "=10.3.0.30-1+cuda12.5"}),
    Case("JetPack 7: a reboot that did not help", reboot_without_help, "reboot", FAIL, "did not help",
        "`systemctl status nv-load-display-modules nv-load-gpu-libs`", "r39.2",
        lambda j: site_mode("MODE_30W")(j), profile="jp7-0005"),
    Case("JetPack 7: no nvgpu", node_gone("/dev/dri", driver=False), "gpu_node", FAIL, "missing: /dev/dri",
        "`systemctl status nv-load-display-modules nv-load-gpu-libs`", "r39.2", profile="jp7-0005"),
    Case("nvmap is root's", lambda j: j.path(paths.NVMAP).chmod(0o600), "gpu_node", FAIL,
        "video and render may not open /dev/nvmap", "sudo udevadm trigger", "udev"),
    Case("nvfancontrol without its profile", fan_without_profile, "fan", WARN, "nvfancontrol: failed",
        "FAN_DEFAULT_PROFILE in /etc/nvfancontrol.conf", "fan", lambda j: j.unit(FAN, StartFails="")),
    Case("dpkg did not finish", half_configured, "l4t", FAIL, "nvidia-l4t-kernel (half-configured)",
        "sudo dpkg --configure -a", "half"),
    Case("dpkg did not finish: packages", half_configured, "packages", WARN,
        "nvidia-l4t-kernel (half-configured)", "sudo dpkg --configure -a", "half"),
    Case("a kernel of another release", other_kernel, "l4t", WARN,
        "mixed: 36.4.3, but nvidia-l4t-kernel 36.4.0",
        "nvidia-l4t-kernel=5.15.148-tegra-36.4.3-20250107174145", "mixed"),
    Case("a kernel of another release: versions", other_kernel, "versions", WARN, "mixed: 36.4.3",
        "ask the maker first", "mixed"),
    Case("not rebooted", lambda j: j.write(paths.REBOOT_REQUIRED, ""), "l4t", WARN,
        "a reboot is due: /run/reboot-required", "sudo reboot", "ubuntu"),
    Case("no render node", node_gone("/dev/dri"), "gpu_node", FAIL, "missing: /dev/dri/renderD*",
        "nvidia-l4t-kernel-oot-modules", "cuInit"),
    Case("no nvmap", node_gone("/dev/nvmap"), "gpu_node", FAIL, "missing: /dev/nvmap", "journalctl -k -b",
        "cuInit"),
    Case("no nvgpu", node_gone(paths.GPU_NODE, driver=False), "gpu_node", FAIL, "igpu0/ctrl",
        "journalctl -k -b", "cuInit"),
    Case("a folder without firmware", without_firmware, "gpu_node", FAIL, "firmware in /etc/firmware",
        "cp -a /lib/firmware/nvidia /etc/firmware/", "firmware"),
    Case("another slot", lambda j: lay(j, "nvbootctrl", "$real | sed '4s/normal/unbootable/; 1s/A/B/'"),
        "slots", WARN, "slot A is unbootable, and slot B runs", "compare its configuration", "slots",
        lambda j: lay(j, "nvbootctrl", "$real")),
    Case("a GPU that did not start", node_gone(paths.GPU_NODE), "gpu_node", FAIL, "igpu0/ctrl", "unplug it",
        "cuInit", lambda j: j.write(paths.GPU_NODE, "")),
    Case("record damaged", damaged_record, "boots", WARN, "damaged; a new one", "boots.json.damaged",
        "ours"),
    Case("TensorRT does not speak any more", fell_back, "backend", WARN,
        "ort-cuda, but spoke on tensorrt in an earlier boot", "python3-libnvinfer", "ours",
        lambda j: boots.note_backend(quick(j), "tensorrt")),
    Case("root in memory", in_memory, "disk", WARN, "/: only in memory", "overlayroot", "overlayroot",
        on_disk),
]  # fmt: skip


class Closed(FaultyRoot):
    """A box whose configuration the user cannot read: an install may restrict it to root and the daemon."""

    def read(self, path: str) -> str:
        if path == CONFIG:
            raise PermissionError(errno.EACCES, "Permission denied", path)
        return super().read(path)


@pytest.fixture
def jetson(tmp_path: Path) -> Jetson:
    return pinned(tmp_path, "jp6-0005")


def pinned(folder: Path, profile: str) -> Jetson:
    found = well(folder / "box", profile)
    lock(quick(found))
    return found


@pytest.mark.parametrize("row", TABLE, ids=lambda row: row.name)
def test_the_remedy_repairs_the_box(row: Case, tmp_path: Path) -> None:
    assert row.seen in SEEN, "a guess turns no test green"
    jetson = pinned(tmp_path, row.profile)
    [before] = run_checks(quick(jetson), only={row.check})
    assert before.level is PASS or row.check == "backend"
    row.arrange(jetson)
    makers = (jetson.root / NVPMODEL_CONF[1:]).is_file() and jetson.read(NVPMODEL_CONF)
    is_link = (jetson.root / NVPMODEL_CONF[1:]).is_symlink()
    [found] = run_checks(quick(jetson), only={row.check})
    row.expect(found)
    worst = exit_code(run_checks(quick(jetson)))
    row.by_hand(jetson)
    follow(jetson, found.remedy, row.words)
    [after] = run_checks(quick(jetson), only={row.check})
    assert after.level is PASS, after
    assert exit_code(run_checks(quick(jetson))) <= worst
    assert clock_status.status(quick(jetson)).clocks.state == "pinned"
    if makers and not is_link and "more cores" not in row.name:
        assert jetson.read(NVPMODEL_CONF) == makers, "nobody makes a maker's file again"


def test_a_better_mode_that_nobody_knows_yet_is_never_lowered(jetson: Jetson) -> None:
    text = jetson.read(NVPMODEL_CONF)
    head, _, rest = text.partition("< POWER_MODEL ID=0 NAME=MAXN >")
    block = rest.partition("< ")[0]
    maxn = "< POWER_MODEL ID=0 NAME=MAXN >"
    jetson.write(NVPMODEL_CONF, f"{head}< POWER_MODEL ID=7 NAME=MAXN_ULTRA >{block}{maxn}{rest}")
    jetson.write(NVPMODEL_STATUS, "pmode:0007")
    calls = len(jetson.calls("nvpmodel"))
    assert (lock(quick(jetson)).state, lock(quick(jetson)).mode) == ("pinned", "MAXN_ULTRA")
    assert {*jetson.calls("nvpmodel")[calls:]} == {"nvpmodel -q"}
    lesser = text.replace("NAME=MODE_50W", "NAME=MAXN_ECO")
    jetson.write(NVPMODEL_CONF, lesser)
    jetson.write(NVPMODEL_STATUS, "pmode:0003")
    assert lock(quick(jetson)).mode == "MAXN", "one that caps more is not better"


def test_a_technician_who_may_not_read_the_configuration(jetson: Jetson) -> None:
    """The configured mode is then known from root's check only."""
    site("device:\n  power_mode: MODE_50W\n")(jetson)
    lock(quick(jetson))
    mine = quick(jetson, user=lambda: 1000)
    mine = dataclasses.replace(mine, root=Closed(mine.root.folder, private=True))
    assert clock_status.status(mine).clocks.state == "pinned"
    [found] = run_checks(mine, only={"power_mode"})
    assert (found.level, found.value) == (PASS, "MODE_50W, as root's check read it")
    jetson.path("/run/f5-appliance/clocks.json").unlink()
    assert clock_status.status(mine).clocks.state == "unknown"
    [found] = run_checks(mine, only={"power_mode"})
    assert found.level is Level.SKIP and "only root" in found.value
