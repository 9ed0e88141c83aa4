"""Owner of the accelerator: takes a segment, returns samples, one flow step at a time."""
