"""Text of a request → pieces that the bundle's vocabulary can say."""
