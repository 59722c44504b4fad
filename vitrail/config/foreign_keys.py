"""The keys that other tools and papers use for settings that are called otherwise here."""

from __future__ import annotations

KEYS = {
    "num_layers": "model.changes.depth",
    "num_hidden_layers": "model.changes.depth",
    "hidden_size": "model.changes.width",
    "hidden_dim": "model.changes.width",
    "num_heads": "model.changes.heads",
    "num_attention_heads": "model.changes.heads",
    "mlp_dim": "model.changes.mlp_width",
    "patch_size": "model.changes.patch_size",
    "image_size": "model.size",
    "batch_size": "data.batch",
    "gradient_accumulation_steps": "data.micro_batch",
    "learning_rate": "optim.lr",
    "lr": "optim.lr",
    "weight_decay": "optim.weight_decay",
    "warmup_steps": "schedule.warmup_steps",
    "total_steps": "schedule.steps",
    "max_steps": "schedule.steps",
    "num_epochs": "schedule.epochs",
    "epochs": "schedule.epochs",
}
MEANINGS = {"data.micro_batch": ", the images of one micro-step: data.batch divided by the number of micro-steps"}


def explain_key(name: str) -> str | None:
    """Returns the remedy for a setting under another name, such as "it is called 'optim.lr' here"; None for an unknown name."""
    key = KEYS.get(name)
    return f"it is called {key!r} here{MEANINGS.get(key, '')}" if key else None
