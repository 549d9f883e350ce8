"""The fast path of softmax losses on a CPU: loss and gradient in one pass over blocks of rows.

Linear losses use the formulas of `blocks` on any device, where no kernel computes them.
"""
