"""What a good engineer writes with FastAPI in ten lines for the same checkpoint: the peer of `serving`, no program to keep.

Decoding, preprocessing, model and top-5 are those of `vitrail serve`; every request is its own batch, in the thread pool.

    python benchmarks/serving_plain.py vit_tiny_patch16_224.safetensors
"""

from __future__ import annotations

import sys
from typing import Any

import torch
import uvicorn
from fastapi import FastAPI, UploadFile

import vitrail

torch.set_num_threads(1)
app = FastAPI()
classifier = vitrail.load(sys.argv[1])


@app.post("/v1/predict")
def predict(file: UploadFile) -> dict[str, Any]:
    (found,) = classifier.predict(file.file.read(), top=5)
    top = [{"label": label, "score": score} for label, score in found.top]
    return {"predictions": [{"name": file.filename, "label": found.label, "score": found.score, "top": top}]}


if __name__ == "__main__":
    uvicorn.run(app, port=0)
