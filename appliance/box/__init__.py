"""The Jetson around the daemon: its clocks, sensors, health checks, support bundle and backup.

Only the standard library is imported: root's commands run with the system's Python, without the daemon's
environment. Every function gets a Box, so a test can replace the Jetson by a folder and fake tools.

    program                   life of a program in scripts/: its exit status, Ctrl-C
    system root tools paths   Box: the file tree, programs, time sources, units; every path
    platform versions         model, L4T, JetPack, TensorRT; is the machine supported?
    dpkg apt                  installed packages, and remedies with their versions; dpkg's lock, holds
    clocks/                   read → judge → decide → act → publish
    sensors/                  temperatures, power, memory, disks
    checks/                   one check for each possible fault, with its remedy
    show/                     clocks and findings as tables
    quiet                     background work of the system that f5-quiet switches off
    backup support/           backup and restore; a diagnostic archive for the maker
"""
