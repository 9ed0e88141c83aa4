"""The Jetson around the daemon: its clocks, sensors, health checks, support bundle and backup.

Standard library only: root's commands run this with the system's Python, without the daemon's environment.
Every function takes a Box, so that in tests a folder and fake tools stand in for a Jetson.

    program                   life of a program in scripts/: its status, Ctrl-C
    system root tools paths   Box: the file tree, programs, time sources, units; every path
    platform versions         model, L4T, JetPack, TensorRT; is the machine supported?
    dpkg apt                  installed packages, and remedies with their versions; dpkg's lock, holds
    clocks/                   read → judge → decide → act → publish
    sensors/                  temperatures, power, memory, disks
    checks/                   one check for each thing that can be wrong, with its remedy
    show/                     clocks and findings as tables
    quiet                     background work of the system that is switched off
    backup support/           backup and restore; a diagnostic archive for the maker
"""
