"""Workshop of the phones' data: hibari's dictionary, tagger and network in the device's form."""
