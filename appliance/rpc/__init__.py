"""The gRPC interface: the .proto file, its services, and the one table from errors to statuses."""
