"""NumPy statistics that several packages share: proper scores, binning, resampling, test inversion."""
