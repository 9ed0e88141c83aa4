"""HTTP for clients that speak no gRPC, a client of the daemon; README.md has the route."""
