"""The examples of docs/your-own.md, written for the Trainer of transformers: how many lines the same takes there.

``python benchmarks/your_own.py PHOTOS`` runs them in the environment of the peers, with accelerate, on a folder of class folders.
Each is as short as its author could make it, without plots, a resume or a record of the settings.
"""

# --- shared: data, model and evaluation, for all examples
import sys
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch.nn import functional as F
from transformers import Trainer, TrainerCallback, TrainingArguments, ViTConfig, ViTForImageClassification

CLASSES = sorted(path.name for path in Path(sys.argv[1]).iterdir())
FILES = sorted(Path(sys.argv[1]).glob("*/*"))


class Photos(torch.utils.data.Dataset):
    def __init__(self, files, transform=None):
        self.files, self.transform = files, transform or to_tensor

    def __len__(self):
        return len(self.files)

    def __getitem__(self, row):
        pixels = self.transform(Image.open(self.files[row]))
        return {"pixel_values": pixels, "labels": CLASSES.index(self.files[row].parent.name)}


def to_tensor(picture):
    pixels = np.array(picture.convert("RGB").resize((32, 32)))
    return torch.from_numpy(pixels).permute(2, 0, 1).float() / 127.5 - 1


def accuracy(prediction):
    return {"top1": float((prediction.predictions.argmax(1) == prediction.label_ids).mean())}


def create_model():
    sizes = {"hidden_size": 192, "num_attention_heads": 3, "intermediate_size": 768, "num_hidden_layers": 2}
    return ViTForImageClassification(ViTConfig(image_size=32, patch_size=8, num_labels=len(CLASSES), **sizes))


ARGUMENTS = {"output_dir": "trainer", "max_steps": 4, "eval_strategy": "steps", "eval_steps": 2, "report_to": []}
DATA = {"train_dataset": Photos(FILES[1::2]), "eval_dataset": Photos(FILES[::2]), "compute_metrics": accuracy}


# --- A callback that stops early
class StopEarly(TrainerCallback):
    def __init__(self, patience=3):
        self.patience, self.best, self.waited = patience, float("inf"), 0

    def on_evaluate(self, args, state, control, metrics, **rest):
        loss = metrics["eval_loss"]
        self.waited = 0 if loss < self.best else self.waited + 1
        self.best = min(self.best, loss)
        print(f"validation loss {loss:.4f}, best {self.best:.4f}")
        control.should_training_stop = self.waited >= self.patience


Trainer(create_model(), TrainingArguments(**ARGUMENTS), callbacks=[StopEarly()], **DATA).train()


# --- A start from your own model
model = create_model()
with torch.no_grad():
    model.classifier.weight.normal_(std=0.02)
for frozen in (model.vit.embeddings, model.vit.layers[0]):
    frozen.requires_grad_(False)
Trainer(model, TrainingArguments(**ARGUMENTS), **DATA).train()


# --- A transform
def crop_and_darken(picture):
    picture = picture.convert("RGB").resize((32, 32))
    pixels = torch.from_numpy(np.array(picture)).permute(2, 0, 1)  # (3, 32, 32)
    return (pixels * torch.empty(1).uniform_(0.6, 1.0)) / 127.5 - 1


dark = {**DATA, "train_dataset": Photos(FILES[1::2], crop_and_darken)}
Trainer(create_model(), TrainingArguments(**ARGUMENTS), **dark).train()


# --- A loss
def focal(outputs, targets, gamma=2):
    log_p = outputs.float().log_softmax(1)  # (B, K)
    targets = F.one_hot(targets, outputs.shape[1]) if targets.ndim == 1 else targets
    return -(targets * (1 - log_p.exp()) ** gamma * log_p).sum(1).mean()


Trainer(
    create_model(),
    TrainingArguments(**ARGUMENTS),
    compute_loss_func=lambda outputs, labels, num_items_in_batch: focal(outputs.logits, labels),
    **DATA,
).train()


# --- A metric
def balanced(prediction):
    right = prediction.predictions.argmax(1) == prediction.label_ids
    recalls = [right[prediction.label_ids == label].mean() for label in np.unique(prediction.label_ids)]
    return {**accuracy(prediction), "balanced": np.mean(recalls)}


trainer = Trainer(create_model(), TrainingArguments(**ARGUMENTS), **{**DATA, "compute_metrics": balanced})
trainer.train()
print(trainer.evaluate())


# --- A network
class Convolutions(torch.nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.features = torch.nn.Sequential(
            torch.nn.Conv2d(3, width, 4, stride=4),
            torch.nn.BatchNorm2d(width),
            torch.nn.GELU(),
            torch.nn.Conv2d(width, 2 * width, 2, stride=2),
            torch.nn.GELU(),
        )
        self.head = torch.nn.Linear(2 * width, len(CLASSES))

    def forward(self, pixel_values, labels=None):
        logits = self.head(self.features(pixel_values).mean((2, 3)))
        loss = None if labels is None else F.cross_entropy(logits, labels)
        return {"loss": loss, "logits": logits}


trainer = Trainer(Convolutions(), TrainingArguments(**ARGUMENTS), **DATA)
trainer.train()
with torch.no_grad():
    logits = trainer.model.eval()(to_tensor(Image.open(FILES[0]))[None])["logits"]
print(CLASSES[int(logits.argmax())])


# --- An objective without labels
class Rotation(torch.nn.Module):
    def __init__(self, encoder):
        super().__init__()
        self.encoder, self.quarters = encoder, torch.nn.Linear(encoder.config.hidden_size, 4)

    def forward(self, pixel_values, labels=None):
        turns = torch.arange(len(pixel_values), device=pixel_values.device) % 4
        turned = torch.stack([image.rot90(int(turn), (1, 2)) for image, turn in zip(pixel_values, turns)])
        logits = self.quarters(self.encoder(turned).last_hidden_state[:, 0]).float()  # (B, 4)
        return {"loss": F.cross_entropy(logits, turns), "logits": logits, "turns": turns}


def rotation_accuracy(prediction):
    logits, turns = prediction.predictions
    return {"accuracy": float((logits.argmax(1) == turns).mean())}


turned = {**DATA, "compute_metrics": rotation_accuracy}
Trainer(Rotation(create_model().vit), TrainingArguments(**ARGUMENTS), **turned).train()


# --- Parameter groups
model = create_model()
groups = [{"params": [], "lr": 5e-4}, {"params": [], "weight_decay": 0.01}, {"params": []}]
for name, parameter in model.named_parameters():
    place = 0 if name.startswith("classifier.") else 1 if name.endswith(".bias") else 2
    groups[place]["params"].append(parameter)
optimizer = torch.optim.AdamW(groups, lr=5e-5, weight_decay=0.1)
Trainer(model, TrainingArguments(**ARGUMENTS), optimizers=(optimizer, None), **DATA).train()
