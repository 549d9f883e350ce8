"""Make src/refocal/data/demo.npz: focal scores of a known posterior.

The posterior is the softmax of Gaussian scores whose spread varies from sample to sample, so that easy and hard
samples occur; the logits are those of the exact focal risk minimiser; labels are drawn from the posterior.

    python tools/make_demo_data.py src/refocal/data/demo.npz
"""

import sys

import numpy as np

import refocal

GAMMA = 3.0
SAMPLES, CLASSES = 4000, 5


def main(path: str) -> None:
    """Write the file."""
    rng = np.random.default_rng(20210619)
    spread = np.exp(rng.uniform(np.log(1.0), np.log(8.0), size=(SAMPLES, 1)))
    scores = spread * rng.standard_normal((SAMPLES, CLASSES))
    posterior = refocal.posterior_from_logits(scores, gamma=0)
    labels = np.argmax(rng.random((SAMPLES, 1)) < np.cumsum(posterior, axis=-1), axis=-1)
    logits = np.log(refocal.minimizer(posterior, gamma=GAMMA))
    np.savez_compressed(
        path,
        logits=logits.astype(np.float32),
        labels=labels.astype(np.int8),
        posterior=posterior.astype(np.float32),
        gamma=np.float64(GAMMA),
    )
    print(f"wrote {path}")


if __name__ == "__main__":
    main(sys.argv[1])
