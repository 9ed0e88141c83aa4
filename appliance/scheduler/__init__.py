"""Order of the engine's work, and admission. Knows neither gRPC nor arrays; clock and engine are arguments.

admission   is a request admitted? Proof that every deadline holds with it
picking     which call of the engine is next, and which jobs share it
loop        the engine's thread: makes that call, delivers what it finished; a moderator's verbs
workload    jobs and channels under one lock
playout     when each segment of a reply is due
calls       the engine as the scheduler drives it
"""

from appliance.scheduler.loop import Scheduler

__all__ = ["Scheduler"]
