"""How one trial is trained: the task interface, the update of a window, and the loop around it."""
