"""Runs a method: the round loop, evaluation, the gate that checks replies, and the in-process transport."""
