"""A compiled network inside a model of torch's: tensors go in and out without copies.

tunery compile zoo:mobilenet_v2 -o mobilenet_v2.tunery && python examples/torch_module.py mobilenet_v2.tunery
"""

import sys

import torch

import tunery.torch


def main(path: str) -> None:
    """Print the likeliest class of noise, by a compiled network between torch's own layers."""
    network = tunery.torch.wrap(path)
    model = torch.nn.Sequential(torch.nn.Hardtanh(-2, 2), network, torch.nn.Softmax(dim=-1)).eval()
    torch.manual_seed(0)
    with torch.inference_mode():
        likely = model(torch.randn(1, 3, 224, 224))
    print(f"class {int(likely.argmax())}: {float(likely.max()):.1%}")


if __name__ == "__main__":
    main(sys.argv[1])
