"""Order of the engine's work, and admission. Knows neither gRPC nor arrays; clock and engine are arguments.

admission   is a request admitted? Every deadline must hold with it
proof       the inequality that says so
loop        the engine's thread: pick → make → settle
picking     which call of the engine is next, and which jobs share it
release     when finished audio goes out; the end of a job
queue       list, watch, skip, clear, pause, resume, cancel
engines     tests, faults and replacement of the engine
trace       an observer: every call, and why each request waited
workload    the state of all of these, and its lock
job         when each segment of a reply is due
interface   the engine as it is driven
"""

from appliance.scheduler.loop import Scheduler

__all__ = ["Scheduler"]
