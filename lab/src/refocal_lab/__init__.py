"""The laboratory of refocal: it trains networks, keeps their logits, and reproduces and checks the papers."""
