"""A vision transformer for small images."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from refocal_lab.train.models.layers import Head


class EncoderLayer(nn.TransformerEncoderLayer):
    """`nn.TransformerEncoderLayer` that normalizes first, without masks, dropout and copies of queries and keys.

    Args:
        width: Length of a token.
        heads: Number of attention heads.
    """

    def __init__(self, width: int, heads: int) -> None:
        super().__init__(width, heads, 4 * width, dropout=0.0, activation="gelu", batch_first=True, norm_first=True)

    def forward(self, words: Tensor) -> Tensor:  # type: ignore[override]
        """Transform (N, tokens, width)."""
        words = words + self._attend(self.norm1(words))
        return words + self.linear2(F.gelu(self.linear1(self.norm2(words))))

    def _attend(self, words: Tensor) -> Tensor:
        attention = self.self_attn
        packed = F.linear(words, attention.in_proj_weight, attention.in_proj_bias)
        packed = packed.view(*words.shape[:2], 3, attention.num_heads, -1)
        queries, keys, values = (part.transpose(1, 2) for part in packed.unbind(2))  # each (N, heads, tokens, size)
        mixed = F.scaled_dot_product_attention(queries, keys, values)
        outputs: Tensor = attention.out_proj(mixed.transpose(1, 2).flatten(2))
        return outputs


class VisionTransformer(nn.Module):
    """Patches as tokens, a class token, learned position vectors, and encoder layers that normalize first.

    With patches of 4 pixels, width 384, 12 layers and 6 heads, this is ViT-S/4.

    Args:
        classes: Number of classes.
        shape: (channels, height, width); height and width are multiples of `patch`.
        patch: Height and width of a patch.
        width: Length of a token.
        depth: Number of encoder layers.
        heads: Number of attention heads.

    Reference: Dosovitskiy et al.: An Image is Worth 16x16 Words. ICLR 2021, section 3.1; the small size is from
        Touvron et al.: Training Data-Efficient Image Transformers. ICML 2021, Table 1.
    """

    def __init__(self, *, classes: int, shape: tuple[int, ...], patch: int, width: int, depth: int, heads: int) -> None:
        super().__init__()
        channels, high, wide = shape
        if high % patch or wide % patch:
            msg = f"shape must be a multiple of {patch} pixels high and wide for a vision transformer, got {shape}"
            raise ValueError(msg)
        self.patches = nn.Conv2d(channels, width, patch, stride=patch)
        self.token = nn.Parameter(torch.zeros(1, 1, width))
        self.places = nn.Parameter(torch.empty(1, 1 + (high // patch) * (wide // patch), width))
        # built one by one: nn.TransformerEncoder would give all layers the same initial weights
        self.layers = nn.Sequential(*(EncoderLayer(width, heads) for _ in range(depth)))
        self.norm = nn.LayerNorm(width)
        self.head = Head(width, classes)
        nn.init.trunc_normal_(self.places, std=0.02)
        nn.init.trunc_normal_(self.head.weight, std=0.02)

    def forward(self, images: Tensor) -> Tensor:
        """(N, C, H, W) -> logits (N, classes)."""
        words = self.patches(images).flatten(2).transpose(1, 2)
        words = torch.cat((self.token.expand(len(words), -1, -1), words), dim=1) + self.places
        return self.head(self.norm(self.layers(words)[:, 0]))
