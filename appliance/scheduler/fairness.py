"""Shares of the promised work, and the newcomers for whom one beyond its share leaves room.

All work is seconds of the engine; README.md computes an example under "Shares".
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from appliance.request import Terms
from appliance.scheduler.job import Job

SCOPES = ("channel", "user", "unnamed", "caller")
"""Properties of a job's terms, each with a share of the promised work."""


@dataclass(frozen=True)
class Share:
    """Promised work of one owner (a channel, user or caller), and how much it may have."""

    used_s: float
    allowed_s: float
    all_s: float
    """Promised to all owners, with one newcomer's request."""
    owners: int

    @property
    def is_exceeded(self) -> bool:
        return self.used_s > self.allowed_s


@dataclass(frozen=True)
class Newcomers:
    """Requests that are expected, one every `apart_s`."""

    count: int
    apart_s: float


def finest_name(terms: Terms) -> str:
    return terms.channel or terms.user or terms.caller or terms.request_id


def share_of(
    job: Job, scope: str, work_s: Mapping[Job, float], newcomer_s: float, weights: Mapping[str, float]
) -> Share | None:
    """Share of the job's owner in `scope`; None without a name there, or if nothing else of it is promised.

    `work_s` has what is promised, the job's own too. With a weight w for each owner, 1 where none is given,
    and a newcomer of weight 1:

        used    = Σ work of the owner
        allowed = w / (Σ w of all owners + 1) · (Σ work + newcomer)
    """
    own = getattr(job.terms, scope)
    others = [other for other in work_s if other is not job and getattr(other.terms, scope) == own]
    if not own or not others:
        return None
    owners = {getattr(other.terms, scope) or finest_name(other.terms) for other in work_s}
    part = weights.get(own, 1.0) / (sum(weights.get(owner, 1.0) for owner in owners) + 1.0)
    all_s = sum(work_s.values()) + newcomer_s
    used_s = work_s[job] + sum(work_s[other] for other in others)
    return Share(used_s, part * all_s, all_s, len(owners))


def expected_newcomers(share: Share, newcomer_s: float, bias: float, most: int) -> Newcomers:
    """Newcomers beside an owner beyond its share, with the engine divided between all owners and them:

        count = ⌈all / newcomer / owners⌉, at most `most`
        apart = (owners + 1) · newcomer · bias

    `bias` is the proof's factor on costs.
    """
    count = math.ceil(share.all_s / newcomer_s / share.owners)
    return Newcomers(min(count, most), (share.owners + 1) * newcomer_s * bias)
