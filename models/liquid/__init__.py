"""Liquid spiking networks: recurrent cells in continuous time and neurons that fire."""
