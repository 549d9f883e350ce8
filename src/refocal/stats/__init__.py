"""Statistics on NumPy arrays that several rooms share: proper scores, binning, resampling, test inversion."""
