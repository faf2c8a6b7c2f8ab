"""The folder or bucket of a search: where it is, its files, and the local copy of a bucket."""
