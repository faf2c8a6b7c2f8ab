"""Liquid spiking networks: recurrent cells in continuous time and spiking neurons."""
