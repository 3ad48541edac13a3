"""The icon of the page."""

from functools import cache

import numpy as np
from PIL import Image

_BLUE = (0, 114, 178, 255)


@cache
def icon(size: int = 64) -> Image.Image:
    """A blue ring, open where the new comes in."""
    y, x = (np.mgrid[:size, :size] + 0.5) / size - 0.5
    radius, angle = np.hypot(x, y), np.arctan2(y, x)
    ring = (radius > 0.27) & (radius < 0.47) & ~((angle > -1.2) & (angle < -0.4))
    dot = np.hypot(x - 0.26, y + 0.26) < 0.13
    image = np.zeros((size, size, 4), np.uint8)
    image[ring | dot] = _BLUE
    return Image.fromarray(image)
