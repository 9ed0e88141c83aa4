"""Where the box stands: what was seen now, with what root remembers of this boot."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from appliance.box.clocks.ledger import Ledger
from appliance.box.clocks.published import Clocks
from appliance.box.clocks.verdict import Sight

UNLOCKED = "unlocked by a technician"
LOCK_COMMAND = "sudo f5-clock-lock lock"


@dataclass(frozen=True)
class Outcome:
    """Where the box stands after work on it."""

    sight: Sight
    ledger: Ledger
    problems: tuple[str, ...] = ()
    rebooting: bool = False

    @property
    def reboot_pending(self) -> bool:
        """Whether the best mode waits for a reboot that nvpmodel has asked for."""
        return bool(self.ledger.reboot_for) and not self.sight.complete

    @property
    def held(self) -> bool:
        """Whether clocks are as they should be, as far as that is possible before a reboot."""
        return self.sight.state == "pinned" or (self.reboot_pending and not self.sight.loose)

    @property
    def clocks(self) -> Clocks:
        """In the published form."""
        seen, ledger = self.sight.clocks, self.ledger
        state, why = seen.state, "; ".join([seen.why, *self.problems]) if seen.why else ""
        if state == "unpinned" and ledger.unlocked_at is not None:
            why = f"{UNLOCKED}; `{LOCK_COMMAND}` pins again; {why}"
        elif state == "unpinned" and self.reboot_pending:
            state, why = "reboot_pending", self._reboot_why(why)
        return dataclasses.replace(
            seen, state=state, why=why, repins=ledger.repins, last_unpin=ledger.last_unpin
        )

    def _reboot_why(self, why: str) -> str:
        mode = self.ledger.reboot_for
        if self.rebooting:
            return f"rebooting into power mode {mode}"
        return f"power mode {mode} takes a reboot: `{LOCK_COMMAND} --allow-reboot` reboots at once; {why}"
