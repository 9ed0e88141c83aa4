"""The Jetson's clocks: read, judged, pinned, released, published.

readings modes                what the kernel reports; the power modes of nvpmodel.conf
verdict                       one reading of all clocks: are they pinned?
pin_record assessment         what root remembers of this boot; a reading judged against it
pinning vendor                lock, unlock and check; NVIDIA's nvpmodel and jetson_clocks
suspects minima               evidence of who unpinned; unlock without a baseline
published                     /run/f5-appliance/clocks.json, for unprivileged readers
"""
