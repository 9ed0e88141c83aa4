"""Lines of chat → speakable text."""
