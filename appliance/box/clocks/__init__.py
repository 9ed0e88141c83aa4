"""The Jetson's clocks. The files, in the order of a check:

    pinning                       lock, unlock and check: each goes through the five steps below
    readings modes                read: everything, once; power modes of nvpmodel.conf
    verdict reason                judge: are they pinned, and why not?
    decision boots suspects       decide, with root's record of the last boots; evidence of who unpinned
    acting                        act: nvpmodel, jetson_clocks and the files that they leave out
    clocks_json                   publish: /run/f5-appliance/clocks.json, for unprivileged readers

Why these steps are apart: an exit status of 0 from nvpmodel or jetson_clocks does not prove that a clock is
pinned, and either may cut the power or reboot the box before it returns. So the verdict is a pure function of
values that the kernel reports, the record of the boot is saved before each step that may end it, and only a
reading after the step is published. The price is that every check reads all files of all clocks, some of them
only as root. Nothing here changes voltages, fans or thermal limits, and no frequency is written in the code.
"""
