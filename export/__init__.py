"""Workshop: convert official weights to bundles. The only package that imports torch."""
