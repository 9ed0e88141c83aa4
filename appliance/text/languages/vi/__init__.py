"""Vietnamese: all of it is in the rows of its file of words."""
