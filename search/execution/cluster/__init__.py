"""Connects to a Ray cluster, checks its nodes and counts the gangs that fit."""
