"""The runtime calls of a step. The estimate of its cost depends on them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from appliance.contract.graphs import KEYED, Dimensions
from appliance.contract.sampler import Sampler
from appliance.request import Segment

Steps = Sequence[tuple[Segment, int]]


@dataclass(frozen=True)
class StepCall:
    """A runtime call: rows of one size through a step graph."""

    graph: str
    frames: int
    reference: int
    rows: int

    @property
    def tokens(self) -> int:
        return self.rows * (self.frames + (self.reference if self.graph != "step_reply" else 0))

    @property
    def pairs(self) -> int:
        """Positions times positions they attend to."""
        return self.tokens * (self.frames + self.reference)


@dataclass(frozen=True)
class BackendCalls:
    """Computes the calls on one backend. Holds no graph, so that the estimates outlive a resting engine."""

    frame_multiple: int
    max_batch: int
    sampler: Sampler
    dimensions: Dimensions

    def alone(self, segment: Segment, step: int) -> list[StepCall]:
        return calls_alone(segment, step, self.frame_multiple, self.max_batch, self.sampler, self.dimensions)

    def together(self, steps: Steps) -> list[StepCall]:
        """The runtime calls if these steps are taken together."""
        calls = [call for segment, step in steps for call in self.alone(segment, step)]
        return [
            replace(
                calls[shared[0]],
                frames=max(calls[i].frames for i in shared),
                rows=sum(calls[i].rows for i in shared),
            )
            for shared in joined_calls(calls, self.max_batch)
        ]


def calls_alone(
    segment: Segment, step: int, multiple: int, max_batch: int, sampler: Sampler, dimensions: Dimensions
) -> list[StepCall]:
    """Calls of this step of a segment of one or two rows, if no other lane shares it."""
    d = dimensions
    rows = sampler.rows(segment.guidance)
    start = 0
    if segment.sampling != "exact":
        start = len(segment.reference_log_mel) // d.stride * d.stride
    frames = padded(segment.frames - start, multiple)
    plain = StepCall("step_keys" if "step" not in d.required and multiple == 1 else "step", frames, 0, 1)
    if not start:
        return [replace(plain, rows=2)] if rows == 2 and max_batch > 1 else [plain] * rows
    keys, reply = (StepCall(name, frames, start, 1) for name in KEYED)
    renews = step in segment.key_steps
    calls = [keys if renews else reply]
    if rows == 2 and d.kept:
        calls.append(keys if renews or changes(unguided(sampler, segment), step) else reply)
    elif rows == 2:
        calls.append(plain)
    return calls


def unguided(sampler: Sampler, segment: Segment) -> tuple[int, ...]:
    """(NFE,) index in `Sampler.conditions` of the unguided row's, by step; empty if there is no such row."""
    if sampler.rows(segment.guidance) == 1:
        return ()
    places = {name: place for place, name in enumerate(sampler.conditions)}
    return tuple(places[sampler.unguided_at(float(t)).condition] for t in segment.times[:-1])


def changes(conditions: Sequence[int], step: int) -> bool:
    """True if a step has another condition than the step before."""
    return bool(conditions) and step > 0 and conditions[step] != conditions[step - 1]


def padded(frames: int, multiple: int) -> int:
    return -(-frames // multiple) * multiple


def joined_calls(calls: Sequence[StepCall], most: int) -> list[list[int]]:
    """Groups of calls, by index, that become one call: rows without a reference, of one length."""
    joined: list[list[int]] = []
    room = 0
    for i in sorted(range(len(calls)), key=lambda i: (calls[i].reference > 0, calls[i].frames)):
        if calls[i].reference or calls[i].rows > room:
            joined.append([])
            room = most
        joined[-1].append(i)
        room = 0 if calls[i].reference else room - calls[i].rows
    return joined
