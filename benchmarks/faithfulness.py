"""Which method says best what a model's answers rest on: deletion and insertion areas against random maps.

Less deletion and more insertion is better; each gain has a 95 % bootstrap interval over images.

    python benchmarks/faithfulness.py vit_tiny_patch16_224.safetensors photographs/
"""

from __future__ import annotations

import argparse
from dataclasses import asdict

import harness

from vitrail.inference.options import InferenceOptions
from vitrail.verbs.explain.scores import measure_faithfulness


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("images")
    parser.add_argument("--steps", type=int, default=14)
    parser.add_argument("--draws", type=int, default=2)
    parser.add_argument("--precision", default="fp32", choices=("fp32", "bf16"))
    given = parser.parse_args()
    options = InferenceOptions(batch=64, precision=given.precision)
    images, scores = measure_faithfulness(
        given.model, [given.images], steps=given.steps, draws=given.draws, inference=options
    )
    for each in scores:
        print(f"{each.method:10} deletion {each.deletion:.4f} {each.deletion_gain}")
        print(f"{'':10} insertion {each.insertion:.4f} {each.insertion_gain}")
    asked = {"steps": given.steps, "draws": given.draws, "precision": given.precision}
    facts = {"images": images, **asked, "methods": [asdict(each) for each in scores]}
    print(harness.write("faithfulness", facts, device="cpu"))


if __name__ == "__main__":
    main()
