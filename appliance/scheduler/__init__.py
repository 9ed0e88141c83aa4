"""Admission, and the order of the engine's work. No gRPC, no arrays; clock and engine are arguments.

admission   may a request come in?
proof       every deadline holds with it
loop        pick → make → settle, on the engine's thread
picking     the next call, and who shares it
release     when audio goes out, and the end of a job
queue       list, watch, skip, clear, pause, resume, cancel
engines     tests, faults, replacement
trace       an observer of it all
workload    the state, and its lock
job         when each segment is due
interface   the engine as it is driven
"""

from appliance.scheduler.loop import Scheduler

__all__ = ["Scheduler"]
