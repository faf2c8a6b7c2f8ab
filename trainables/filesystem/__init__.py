"""Local and remote paths behind one interface."""
