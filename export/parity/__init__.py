"""Parity of a bundle: results of torch and of upstream, and the distance of its graphs from them."""
