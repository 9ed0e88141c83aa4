"""Admission, and the order of the engine's work. No gRPC, no arrays; clock and engine are arguments.

admission, choice    a way and a deadline for a request, or a refusal
deadlines, fairness  the inequality that all deadlines must keep; shares of the engine
loop, picking        pick → make → settle
release              when audio goes out; the end of a job
queue                list, watch, skip, clear, pause, resume, cancel
engines              tests, faults, replacement, rest
job, workload        due times; the state and its lock
"""

from appliance.scheduler.loop import Scheduler

__all__ = ["Scheduler"]
