"""The daemon's own addresses, which its clients take where none is named."""

from __future__ import annotations

LOOPBACK_GRPC = "127.0.0.1:50051"
ADMIN_SOCKET = "/run/f5-appliance/admin.sock"
