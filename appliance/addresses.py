"""Addresses of the daemon that its clients use by default."""

from __future__ import annotations

LOOPBACK_GRPC = "127.0.0.1:50051"
ADMIN_SOCKET = "/run/f5-appliance/admin.sock"
