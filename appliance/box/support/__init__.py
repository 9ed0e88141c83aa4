"""The support bundle: states, logs and versions, with everything that names a person or a box taken out."""
