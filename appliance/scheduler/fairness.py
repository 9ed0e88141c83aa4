"""Shares of the promised work, and the newcomers for whom an owner beyond its share leaves room.

The inequality in `deadlines` alone serves whoever comes first: a flood of requests would take all the time up
to every deadline, and the next caller would be refused. So a request of an owner that uses more than its
share is planned as if other callers' requests were promised already. Promises stay, and the engine is never
reserved: time that no other caller asks for goes to the flood. The price is that a request of the flood is
promised a later time, or is refused, although the engine may have been idle. The shares are not a rate limit
(`user_rate` is), and they order no calls of the engine (`picking` does).

Work is in seconds of the engine. README.md computes an example under "Shares".
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from appliance.request import Terms
from appliance.scheduler.job import Demand, Job
from appliance.scheduler.workload import Activity

SCOPES = ("channel", "user", "unnamed")
"""Properties of a job's terms, each with a share of its caller's promised work."""
SOON_S = 10.0
"""Window of a share, in seconds: work that is due later does not count as used yet."""
MOST_NEWCOMERS = 100


@dataclass(frozen=True)
class Share:
    """Work of one owner (a channel, user or caller), and how much it may have."""

    used_s: float
    allowed_s: float
    all_s: float
    """Work of all owners, with one newcomer's request."""
    owners: int

    @property
    def is_exceeded(self) -> bool:
        return self.used_s > self.allowed_s


@dataclass(frozen=True)
class Newcomers:
    """Requests that are expected, one every `apart_s`."""

    count: int
    apart_s: float
    cost_s: float

    @property
    def work_s(self) -> float:
        return self.count * self.cost_s


def finest_name(terms: Terms) -> str:
    return terms.channel or terms.user or terms.caller or terms.request_id


def due_soon(job: Job, others: Sequence[Demand], now: float) -> dict[Job, float]:
    """Job → its work that is due within SOON_S; of the job to admit, within SOON_S of its first deadline."""
    soon_s = {job: sum(d.cost_s for d in job.demands(now, job.due, job.due) if d.due <= job.due + SOON_S)}
    for demand in others:
        if demand.due <= now + SOON_S:
            soon_s[demand.job] = soon_s.get(demand.job, 0.0) + demand.cost_s
    return soon_s


def share_of(
    job: Job, scope: str, work_s: Mapping[Job, float], newcomer_s: float, weights: Mapping[str, float]
) -> Share | None:
    """Share of the job's owner in `scope`; None if the job names none there, or the owner has no other job.

    `work_s` is the promised work of each job, the job to admit included. With a weight w for each owner (by
    default 1), and a newcomer of weight 1:

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


def caller_share(
    job: Job, work_s: Mapping[Job, float], newcomer_s: float, active: Mapping[str, Activity], now: float
) -> Share | None:
    """Share of the job's caller among all active callers, as in `share_of`; None if the caller is not active.

    Engine time of the last seconds counts as promised, because a caller whose requests are finished at once
    has no promised work when its next request comes. Of the job only the first audio counts: a long reply is
    no flood.
    """
    own = job.terms.caller
    if own not in active:
        return None
    spent_s = sum(activity.spent_s(now) for activity in active.values())
    all_s = sum(work_s.values()) + spent_s + newcomer_s
    others_s = sum(work for other, work in work_s.items() if other is not job and other.terms.caller == own)
    part = active[own].weight / (sum(activity.weight for activity in active.values()) + 1.0)
    used_s = others_s + active[own].spent_s(now) + job.audible_in_s()
    return Share(used_s, part * all_s, all_s, len(active))


def expected_newcomers(
    owners: int, promised_s: float, newcomer_s: float, bias: float, most: int
) -> Newcomers:
    """Newcomers to plan for if an owner is beyond its share; all owners and they divide the engine:

        count = ⌈(promised + newcomer) / newcomer / owners⌉, at most `most`
        apart = (owners + 1) · newcomer · bias

    `promised_s` is all promised work, whenever due; `bias` is the factor on costs in the inequality.
    """
    count = math.ceil((promised_s + newcomer_s) / newcomer_s / owners)
    return Newcomers(min(count, most), (owners + 1) * newcomer_s * bias, newcomer_s)


def returning_callers(
    job: Job,
    promised: Sequence[Demand],
    newcomer_s: float,
    bias: float,
    active: Mapping[str, Activity],
    now: float,
) -> Newcomers:
    """Requests of other callers within their shares, until all promised work and the job are finished:

        part(c) = min(usual(c), w / (Σ w of all active + 1))
        until   = max(end of the job, bias · Σ promised / (1 − Σ part))
        work    = Σ (part · until − promised(c))

    `usual` is a caller's part of the engine's time in the last seconds. A caller that has more promised work
    than its part needs no room.
    """
    promised_s: defaultdict[str, float] = defaultdict(float)
    for demand in promised:
        promised_s[demand.job.terms.caller] += demand.cost_s
    weights = sum(activity.weight for activity in active.values()) + 1.0
    least_s = bias * sum(promised_s.values())
    parts = {
        name: part
        for name, activity in active.items()
        if name != job.terms.caller
        and promised_s[name] < (part := min(activity.part(now), activity.weight / weights)) * least_s
    }
    ends = max(demand.due for demand in job.demands(now, job.due, job.due)) - now
    until_s = max(ends, least_s / (1.0 - sum(parts.values())))
    work_s = sum(part * until_s - promised_s[name] for name, part in parts.items())
    count = max(min(math.ceil(work_s / newcomer_s), MOST_NEWCOMERS), 1)
    return Newcomers(count, until_s / count, work_s / count)
