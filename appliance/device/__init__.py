"""The box: reads and judges it from sysfs, procfs and the vendor's tools, and pins its clocks.

Standard library only: root's scripts run this with the system's Python, without the daemon's environment.
Everything is reached through a Box, so that a folder and fake tools can stand in for a Jetson.

    root tools box             a tree of files, programs run without a terminal, and both with clocks
    platform modes readings    which Jetson, which power modes, what the kernel says
    clocks                     are they pinned? judged from readings alone
    vendor pinning ledger      pin, read back, remember; culprits and private stand beside them
    show status outcome        the vendor's second opinion, and how it is told
    published                  /run/f5-appliance/clocks.json: what root found, for all to read
    sensors memory disk …      what health looks at beside the clocks
"""
