"""The laboratory of refocal: train networks, keep their logits, reproduce and check the papers."""
