"""Health checks of the box. They use the standard library only, because the daemon's environment may be
broken.

    finding      the result of a check: level, value, threshold, remedy
    clocks boots l4t heat power storage wear reset slots quietness fitness readiness speed
                 the checks: pure functions from readings to findings, each with its readings and remedies
    snapshot     readings of the box, each made once; @check, with which a check registers itself
    counters     counts that only rise, and their rates
    runner       imports every file of this folder; orders the checks by harm and runs them
    application  runs the application's own checks in another process
    health_json  health.json: a run of f5-health writes it, the next run and the daemon read it

To add a check, write a function with @check in a file of this folder, a row in tests/box/cases.py, and, in
the order of harm and place, a row in systemd/README.md. tests/fakes/jetson/tree.py has the files that checks
read, tests/box/technician.py the commands of remedies.
"""
