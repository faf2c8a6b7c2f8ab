"""What the page says of a search, a file for each section.

In each is a function `section`, which takes the search and returns what there is to say, or None.
"""
