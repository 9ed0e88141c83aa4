"""Builds the Debian package: `wheels` fetches what the lock pins, `package` lays it out and packs it."""
