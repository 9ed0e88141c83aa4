"""Admission, and the order of the engine's work. No gRPC, no arrays; clock and engine are arguments.

admission, proof   every deadline must hold
loop, picking      pick → make → settle
release            when audio goes out; the end of a job
queue              list, watch, skip, clear, pause, resume, cancel
engines            tests, faults, replacement
job, workload      due times; the state and its lock
"""

from appliance.scheduler.loop import Scheduler

__all__ = ["Scheduler"]
