"""The checks that watch a trial while it trains: one file each, with its hooks, its judgment and its kinds."""
