"""Classify an image, in the words of ONNX Runtime: a program that used it changes one import.

tunery compile zoo:mobilenet_v2 -o mobilenet_v2.tunery && python examples/image_classification.py mobilenet_v2.tunery

With a second file of `numpy.save`, an image of height x width x 3 in bytes, that is classified instead of noise.
"""

import sys

import numpy as np

import tunery

MEAN, DEVIATION = np.array([0.485, 0.456, 0.406]), np.array([0.229, 0.224, 0.225])


def prepared(image: np.ndarray, height: int, width: int) -> np.ndarray:
    """Return an image's nearest pixels as a network trained on ImageNet takes them: 1 x 3 x height x width."""
    rows = np.arange(height) * image.shape[0] // height
    columns = np.arange(width) * image.shape[1] // width
    scaled = (image[rows][:, columns] / 255 - MEAN) / DEVIATION
    return np.ascontiguousarray(scaled.transpose(2, 0, 1)[None], np.float32)


def main(path: str, picture: str = "") -> None:
    """Print the five most likely classes by their numbers, with their probabilities."""
    image = np.load(picture) if picture else np.random.default_rng(0).integers(0, 256, (256, 320, 3), np.uint8)
    with tunery.InferenceSession(path) as session:
        [node] = session.get_inputs()
        [scores] = session.run(None, {node.name: prepared(image, *node.shape[2:])})
    likely = np.exp(scores[0] - scores[0].max())
    likely /= likely.sum()
    for number in np.argsort(-likely)[:5]:
        print(f"class {number}: {likely[number]:.1%}")


if __name__ == "__main__":
    main(*sys.argv[1:])
