"""The defects, each with the test that must notice it."""

from __future__ import annotations

from dataclasses import dataclass

PINNING = "tests/device/test_pinning.py"
CLOCKS = "tests/device/test_clocks.py"
DEGRADED = "tests/test_clocks_degraded.py"
SAMPLING = "tests/engine/test_sampling.py"
FAULTS = "tests/engine/test_faults.py"
LANES = "tests/engine/test_synthesizer.py"


@dataclass(frozen=True)
class Mutation:
    """One careless change."""

    name: str
    file: str
    sound: str
    """What stands there, once."""
    defect: str
    """What stands there instead."""
    test: str
    """The test that turns red, as pytest takes it."""


MUTATIONS = (
    Mutation(
        "what jetson_clocks ends with is believed",
        "appliance/device/pinning.py",
        "    sight = _read_back(box, now.ledger)\n    told = tuple(filter(None, problems))\n",
        "    sight = _read_back(box, now.ledger)\n    told = tuple(filter(None, problems))\n"
        "    if not told:\n"
        "        sight = dataclasses.replace(sight, reasons=(), domains={})\n",
        f"{PINNING}::test_a_gpu_that_fails_silently_is_seen",
    ),
    Mutation(
        "clocks that stand still anywhere are pinned",
        "appliance/device/clocks.py",
        "    if clock.max < ceiling:\n",
        "    if clock.max < ceiling and not clock.held:\n",
        f"{CLOCKS}::test_a_file_edited_behind_our_back",
    ),
    Mutation(
        "memory at its top is locked",
        "appliance/device/clocks.py",
        "    locked = emc.locked or emc.range.held or (reach is not None and emc.range.min == reach)\n",
        "    locked = emc.range.current == emc.range.max\n",
        f"{CLOCKS}::test_a_file_edited_behind_our_back",
    ),
    Mutation(
        "a core that is off is not missed",
        "appliance/device/clocks.py",
        "    elif off:\n",
        "    elif off and not online:\n",
        f"{CLOCKS}::test_a_file_edited_behind_our_back",
    ),
    Mutation(
        "the first power mode is the best one",
        "appliance/device/modes.py",
        "    return next((mode for name in BEST if (mode := conf.by_name(name))), None)\n",
        "    return conf.by_id(0)\n",
        f"{PINNING}::test_maxn_super_goes_before_maxn_whatever_its_id",
    ),
    Mutation(
        "nvpmodel's question is answered",
        "appliance/device/vendor.py",
        'answer="YES\\n" if allow_reboot else ""',
        'answer="YES\\n"',
        f"{PINNING}::test_from_the_factory_to_pinned",
    ),
    Mutation(
        "the present mode is set again",
        "appliance/device/pinning.py",
        "    done = now.sight.complete if allow_reboot else now.sight.best_mode\n",
        "    done = False\n",
        f"{PINNING}::test_the_present_mode_is_not_set_again",
    ),
    Mutation(
        "a pinned box gives the baseline",
        "appliance/device/pinning.py",
        "    return sight.complete and free and not vendor.has_baseline(box)\n",
        "    return sight.complete and not vendor.has_baseline(box)\n",
        f"{PINNING}::test_a_pinned_box_gives_no_baseline",
    ),
    Mutation(
        "a baseline is restored whoever wrote it",
        "appliance/device/vendor.py",
        "    return is_private_file(box.root, BASELINE) and _is_whole(box)\n",
        "    return box.root.exists(BASELINE) and _is_whole(box)\n",
        f"{PINNING}::test_a_baseline_that_others_could_have_written_is_not_restored",
    ),
    Mutation(
        "pinned again without end",
        "appliance/device/ledger.py",
        "        return 0.0 if len(recent) < REPINS_PER_HOUR else",
        "        return 0.0 if recent else",
        f"{PINNING}::test_the_seventh_unpin_of_an_hour_is_not_re_pinned",
    ),
    Mutation(
        "what a technician unlocked is pinned again",
        "appliance/device/pinning.py",
        "now.held or now.ledger.unlocked_at is not None or not _mendable(now)",
        "now.held or not _mendable(now)",
        f"{PINNING}::test_unlocked_clocks_are_left_alone_until_lock",
    ),
    Mutation(
        "an old file is believed",
        "appliance/device/published.py",
        "    if not -0.001 <= age_s <= FRESH_S:\n",
        "    if age_s < -0.001:\n",
        f"{DEGRADED}::test_a_file_that_is_old_or_from_another_boot_is_not_believed",
    ),
    Mutation(
        "a file from before the boot is believed",
        "appliance/device/published.py",
        "    if clocks.boot_id != box.boot_id:\n",
        "    if not clocks.boot_id:\n",
        f"{DEGRADED}::test_a_file_that_is_old_or_from_another_boot_is_not_believed",
    ),
    Mutation(
        "the wall clock tells how old a file is",
        "appliance/device/published.py",
        "checked_at=round(box.uptime(), 3)",
        "checked_at=round(box.wall(), 3)",
        f"{PINNING}::test_a_clock_in_1970_does_not_matter",
    ),
    Mutation(
        "a sensor that sleeps is read through a buffer",
        "appliance/device/root.py",
        "            parts = []\n"
        "            while part := os.read(handle, READ_BYTES):\n"
        "                parts.append(part)\n",
        '            parts = [os.fdopen(handle, "rb", closefd=False).read()]\n',
        "tests/device/test_sensors.py::test_zones_without_power_answer_eagain_and_are_left_out",
    ),
    Mutation(
        "sensors have fixed numbers",
        "appliance/device/sensors.py",
        'if root.text(f"{folder}/name") == name)',
        'if folder.endswith({"ina3221": "hwmon1", "soctherm_oc": "hwmon3", "pwmfan": "hwmon2"}[name]))',
        "tests/device/test_sensors.py::test_sensors_are_found_by_name_though_their_numbers_move",
    ),
    Mutation(
        "counters since boot are events of now",
        "appliance/health/history.py",
        "    return Rise(now.counts[name] - then.counts[name], now.at - then.at, recorded=True)\n",
        "    return Rise(now.counts[name], now.at - then.at, recorded=True)\n",
        "tests/health/test_history.py::test_the_window",
    ),
    Mutation(
        "the exit status is the last check's",
        "appliance/health/finding.py",
        "    worst = max((finding.level.rank for finding in findings), default=0)\n",
        "    worst = [0, *(finding.level.rank for finding in findings)][-1]\n",
        "tests/health/test_judgements.py::test_the_worst_is_the_exit_status",
    ),
    Mutation(
        "the watchdog is fed whatever the engine does",
        "appliance/supervision.py",
        "        if alive:\n            self._notifier.watchdog()\n",
        "        self._notifier.watchdog()\n",
        "tests/test_supervision.py::test_silence_stops_the_feeding_and_is_told_once",
    ),
    Mutation(
        "ready before it is warm",
        "appliance/daemon.py",
        "            if warm.done() and not stopped.done():\n",
        "            if not stopped.done():\n",
        "tests/test_supervised.py::test_a_damaged_bundle_is_never_ready",
    ),
    Mutation(
        "unpinned clocks are not told to callers",
        "appliance/clockwatch.py",
        '        if clocks.state == "pinned":\n            return ""\n',
        '        if clocks.state in ("pinned", "unpinned"):\n            return ""\n',
        f"{DEGRADED}::test_a_published_state_on_a_jetson",
    ),
    Mutation(
        "the maker is sent whatever stood in the journal",
        "appliance/health/redact.py",
        '            lines.append(f"[{at}] {name if name in SYSTEM else outline(name)}: {shown}")\n',
        "            lines.append(line)\n",
        "tests/test_support_bundle.py::test_nothing_that_was_planted_is_in_it",
    ),
    Mutation(
        "a release that is not well stays",
        "scripts/installer/switching.py",
        "    if problem:\n        raise Failure(",
        "    if problem and not old:\n        raise Failure(",
        "tests/install/test_switch.py::test_a_version_that_is_not_well_is_put_back",
    ),
    Mutation(
        "the reference's latents are those of the step before",
        "appliance/engine/flow.py",
        "float(lane.segment.times[lane.done])",
        "float(lane.segment.times[max(lane.done - 1, 0)])",
        f"{SAMPLING}::test_a_lane_is_what_a_plain_sampler_makes",
    ),
    Mutation(
        "the unguided row has the reference too",
        "appliance/engine/flow.py",
        "reference = start if i == 0 else 0",
        "reference = start",
        f"{SAMPLING}::test_a_lane_is_what_a_plain_sampler_makes",
    ),
    Mutation(
        "keys and values stay behind when a row moves",
        "appliance/engine/slab.py",
        "            for name, axes in self._axes.items():\n",
        "            for name, axes in self._axes.items():\n"
        '                if name.startswith("keys"):\n'
        "                    continue\n",
        f"{LANES}::test_lanes_that_join_leave_and_are_cancelled_change_nothing_for_the_others",
    ),
    Mutation(
        "an update is bound to where its lane's rows were",
        "appliance/engine/flow.py",
        "if lane.updates is None or lane.updates.places != places:",
        "if lane.updates is None:",
        f"{LANES}::test_lanes_that_join_leave_and_are_cancelled_change_nothing_for_the_others",
    ),
    Mutation(
        "a step allocates",
        "appliance/engine/flow.py",
        "        new = backend.view(self._next, (frames, self.dimensions.mels))\n",
        '        new = backend.empty((frames, self.dimensions.mels), "float32")\n'
        "        backend.copy(backend.view(self._next, new.shape), new)\n",
        f"{LANES}::test_nothing_is_logged_printed_or_allocated_inside_the_step_loop",
    ),
    Mutation(
        "a row finds what an earlier lane left",
        "appliance/engine/slab.py",
        "            self.backend.copy(blank, row.view(name))\n",
        "            del blank\n",
        f"{FAULTS}::test_a_row_is_clean_of_the_lane_that_had_its_place",
    ),
    Mutation(
        "a lane that failed to open keeps its rows",
        "appliance/engine/flow.py",
        "            for row in rows:\n                row.slab.leave(row)\n            raise\n",
        "            raise\n",
        "tests/engine/test_flow.py::test_an_opening_that_fails_anywhere_leaves_no_row_and_no_hold_behind",
    ),
)
