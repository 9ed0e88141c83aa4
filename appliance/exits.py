"""Exit statuses of the daemon and the gateway, numbered as in sysexits.h."""

from __future__ import annotations

import enum


class Exit(enum.IntEnum):
    OK = 0
    BUNDLE = 65
    ADDRESS_NOT_OURS = 68
    MEMORY = 69
    ENGINE = 70
    DEVICE = 71
    STORAGE = 74
    ADDRESS_IN_USE = 75
    CONFIG = 78


NOT_RETRIED = (Exit.BUNDLE, Exit.STORAGE, Exit.CONFIG)
"""Statuses after which systemd does not start again: RestartPreventExitStatus of the units."""
