"""Compare sentences by the mean of what a BERT encoder makes of their tokens.

tunery compile zoo:bert-mini -o bert.tunery && python examples/bert_encoder.py bert.tunery

The models of the zoo have random weights, and words are numbered here by a hash in place of a vocabulary: with your own
model and its tokenizer the rest stays as it is.
"""

import sys
import zlib

import numpy as np

import tunery

SENTENCES = ("a compiler makes code", "the compiler makes fast code", "bread is baked in the morning")
WORDS = 30_000


def main(path: str) -> None:
    """Print how much alike the sentences are."""
    network = tunery.load_compiled(path)
    length = network.inputs[0].shape[-1]
    made = []
    for sentence in SENTENCES:
        words = [1 + zlib.crc32(word.encode()) % WORDS for word in sentence.split()][:length]
        told = np.arange(length) < len(words)
        given = []
        for spec in network.inputs:  # token numbers, which of them are there, and of which sentence they are
            array = np.zeros(spec.shape, spec.dtype)
            if "mask" in spec.name:
                array[...] = told
            elif "type" not in spec.name:
                array[..., : len(words)] = words
            given.append(array)
        states = next(one for one in network(*given) if one.ndim == 3)
        mean = states[0, told].mean(axis=0)
        made.append(mean / np.linalg.norm(mean))
    for first in range(len(SENTENCES)):
        for second in range(first):
            print(f"{made[first] @ made[second]:.3f}  {SENTENCES[second]} / {SENTENCES[first]}")


if __name__ == "__main__":
    main(sys.argv[1])
