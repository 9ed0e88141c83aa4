"""Files of weights: what they are, what they hold, on what terms."""
