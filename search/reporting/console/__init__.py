"""What a search shows in a terminal."""
