"""What the page says of a search: a file for each section, and in it a function that makes it."""
