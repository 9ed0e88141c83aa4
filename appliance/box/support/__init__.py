"""Support bundle: states, logs and versions, with everything removed that identifies a person or a box."""
