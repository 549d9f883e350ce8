"""Training: data sets, networks and the loop that brings them together (extra `train`)."""
