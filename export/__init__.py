"""The workshop: official weights in, a bundle out. Torch lives here and nowhere else."""
