"""The clocks: what the kernel says, whether they are pinned, and how they are pinned and let go.

readings modes           what the kernel says; which power modes nvpmodel.conf offers
verdict                  are they pinned? judged from readings alone
vendor pinning ledger    pin, read back, remember
culprits minima          who unpinned them; unlock without a baseline
published                /run/f5-appliance/clocks.json: what root found, for all to read
"""
