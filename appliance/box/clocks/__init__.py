"""The Jetson's clocks, in the order of a check.

pinning                       lock, unlock and check: each goes through the five below
readings modes                read: all of it once; power modes of nvpmodel.conf
verdict reason                judge: are they pinned, and why not?
decision boots suspects       decide, with root's record of the last boots; evidence of who unpinned
acting                        act: nvpmodel, jetson_clocks and the files that they leave out
clocks_json                   publish: /run/f5-appliance/clocks.json, for unprivileged readers
"""
