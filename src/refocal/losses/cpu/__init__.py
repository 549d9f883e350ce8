"""The fast path of softmax losses on a CPU: loss and gradient in one pass over blocks of rows."""
