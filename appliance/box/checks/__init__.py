"""Health checks of the box. Standard library only: they run when the daemon's environment is what is broken.

finding      the result of a check: level, value, threshold, remedy
clocks boots l4t heat power storage wear reset quietness fitness readiness speed jtop
             the checks: pure functions from readings to findings, each with its readings and remedies
snapshot     readings of the box, each made once; @check, with which a check registers itself
counters     counts that only rise, and their rates
runner       which checks there are, by what their failure costs; runs them
application  runs the application's own checks in another process
health       one run of f5-health: both together
health_json  health.json: written by that run, read by the next one and by the daemon

Another check is a function with @check, its name in runner.BY_HARM, and a row of systemd/README.md.
"""
