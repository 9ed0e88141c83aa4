"""Owner of the accelerator: a segment in, samples out, one flow step at a time."""
