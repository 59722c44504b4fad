"""Parts of a ViT as other layouts store them: q, k and v, or gate and value, apart, pairs of RoPE as neighbouring channels, and
tokens without leading axes.

D width, H heads, E = D / H, M width of the MLP, N patches, P prefix tokens.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, cat

from vitrail.models.vit import LATER_FIELDS, ViTConfig
from vitrail.weights.names import State, invert, join_parts, rename, split_parts

# parts of a block that are one tensor in vitrail: attn.q, attn.k and attn.v; mlp.g, the gate of a SwiGLU, and mlp.x, its value
PARTS = {"attn": "qkv", "mlp": "gx"}
# where only q and v have a bias, they remain apart
OWN = {"blocks.{}.attn.q.bias": "blocks.{}.attn.q_bias", "blocks.{}.attn.v.bias": "blocks.{}.attn.v_bias"}
GATED = {"blocks.{}.mlp.gx": "blocks.{}.mlp.fc1"}
# a SwiGLU as DINOv2 names it: gate and value in one layer
PACKED = {"blocks.{}.mlp.w12": "blocks.{}.mlp.fc1", "blocks.{}.mlp.w3": "blocks.{}.mlp.fc2"}


def join_blocks(state: State) -> State:
    """Joins ``attn.q``, ``attn.k`` and ``attn.v`` to ``attn.qkv``, and ``mlp.g`` and ``mlp.x`` to ``mlp.fc1``, in each block."""
    return rename(join_parts(state, PARTS), OWN | GATED)


def split_biases(state: State) -> State:
    """Names the biases of q and v as if they were apart from that of k."""
    return rename(state, invert(OWN))


def split_gates(state: State) -> State:
    """Splits ``mlp.fc1`` of a SwiGLU to ``mlp.g`` and ``mlp.x``."""
    return split_parts(rename(state, invert(GATED)), {"mlp": "gx"})


def find_other_parts(config: ViTConfig, *, but: tuple[str, ...] = ()) -> dict[str, bool]:
    """Returns for each of `LATER_FIELDS` ``but`` some whether it differs from the paper, by name and value."""
    values = {name: getattr(config, name) for name in LATER_FIELDS if name not in but}
    return {f"{name}={value!r}": value != getattr(ViTConfig, name) for name, value in values.items()}


def from_flat_tokens(state: State) -> State:
    """Adds the leading axes of token and table, (D,) and (P + N, D), and splits q, (D, D), from k and v of attention pooling."""
    own = {name: tensor for name, tensor in state.items() if not name.startswith("attn_pool.in_proj_")}
    for name, theirs in (("cls_token", "cls_token"), ("pos_embed", "pos_embed.weight")):
        if theirs in state:
            own[name] = own.pop(theirs).reshape(1, -1, state[theirs].shape[-1])
    for kind in ("weight", "bias"):
        if (joined := state.get(f"attn_pool.in_proj_{kind}")) is not None and len(joined) % 3 == 0:
            width = len(joined) // 3
            own |= {f"attn_pool.q.{kind}": joined[:width], f"attn_pool.kv.{kind}": joined[width:]}
    return own


def pair_halves(config: Any, state: State) -> State:
    """Orders the channels of q and k, whose pairs are neighbours in another layout, as `vitrail.models.rope`."""
    return _order(config, state, (-1, 2))


def pair_neighbours(config: Any, state: State) -> State:
    """The inverse of `pair_halves`."""
    return _order(config, state, (2, -1))


def _order(config: Any, state: State, pairs: tuple[int, int]) -> State:
    def order(rows: Tensor) -> Tensor:  # (D,) or (D, D)
        return rows.unflatten(0, (config.heads, *pairs)).transpose(1, 2).flatten(0, 2)

    ordered = dict(state)
    for name, tensor in state.items():
        if not name.startswith("blocks."):
            continue
        if ".attn.qkv." in name:
            q, k, v = tensor.chunk(3)
            ordered[name] = cat([order(q), order(k), v])
        elif name.endswith(".attn.q_bias"):
            ordered[name] = order(tensor)
    return ordered
