"""HTTP for clients without gRPC. The gateway is a client of the daemon; README.md has its endpoints."""
