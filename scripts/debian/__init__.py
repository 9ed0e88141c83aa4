"""Builds the Debian package: `wheels` fetches the locked wheels, `package` lays out and packs the files."""
