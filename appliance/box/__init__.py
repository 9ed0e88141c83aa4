"""The box around the daemon: read and judged from sysfs, procfs and the vendor's tools; its clocks pinned.

Standard library only: root's commands run this with the system's Python, without the daemon's environment.
Everything is reached through a Box, so that a folder and fake tools can stand in for a Jetson.

    paths root tools system   where everything lies; a tree of files, programs without a terminal
    platform versions         which Jetson, which power modes, which versions
    clocks/                   read, judged, pinned, remembered, published for all to read
    sensors/                  temperatures, power, memory, disks
    checks/                   one check for each thing that can be wrong, with its remedy
    show/                     clocks and findings as tables
    support/                  one file for the maker, without anybody's words or voices
    clockwatch supervision notify
                              what the daemon imports: published clocks, systemd's watchdog
"""
