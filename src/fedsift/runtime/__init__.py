"""What runs a method: the loop, evaluation, the gate that checks replies, and the in-process transport."""
