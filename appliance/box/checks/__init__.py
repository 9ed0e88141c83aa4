"""Health checks of the box. Standard library only: they run when the daemon's own environment is broken.

finding      the result of a check: level, value, threshold, remedy
clocks boots l4t heat power storage wear reset slots quietness fitness readiness speed
             the checks: pure functions from readings to findings, each with its readings and remedies
snapshot     readings of the box, each made once; @check, with which a check registers itself
counters     counts that only rise, and their rates
runner       imports every file of this folder; orders the checks by harm and runs them
application  runs the application's own checks in another process
health_json  health.json: written by a run of f5-health, read by the next one and by the daemon

Another check is a function with @check in a file of this folder, and a row of systemd/README.md.
"""
