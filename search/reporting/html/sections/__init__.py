"""The sections of the page. The function `build` of each file takes the search and returns a section or None."""
