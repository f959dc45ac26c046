# SPDX-License-Identifier: Apache-2.0
"""The transformation matrices of Winograd's minimal filtering F(m x m, 3 x 3).

at, g, bt = winograd_matrices_at_g_bt(4)  # (4, 6), (6, 3), (6, 6)
y = at @ ((g @ w @ g.T) * (bt @ d @ bt.T)) @ at.T     # 4x4 outputs from 6x6 inputs and 3x3 weights

They are built by Toom-Cook interpolation (Lavin and Gray 2015, "Fast algorithms for convolutional
neural networks", gives the two-dimensional form). The rounding error depends on the interpolation
points: pairs p and 1 / p keep the powers small. F(4) with the points 0, +-sqrt(2), +-sqrt(1/2) has
a fifth of the rounding error that it has with 0, +-1, +-2.
"""

import math
from functools import cache
from typing import Any, Final

import numpy as np

#: The extent of the filters.
FILTER_EXTENT: Final = 3
#: The output tiles that there are points for.
SUPPORTED_OUTPUT_TILES: Final = (2, 4)
_SQRT_2: Final = math.sqrt(2.0)
#: Finite points, a number and its negative side by side; infinity is always the last.
_INTERPOLATION_POINTS: Final = {2: (0.0, 1.0, -1.0), 4: (0.0, _SQRT_2, -_SQRT_2, 1 / _SQRT_2, -1 / _SQRT_2)}

Matrix = np.ndarray[Any, np.dtype[np.float64]]


def _polynomial_coefficients_lowest_first(roots: tuple[float, ...]) -> list[float]:
    """The coefficients of (x - a)(x - b)..., lowest first; those of paired roots vanish exactly."""
    coefficients = [1.0]
    rest = list(roots)
    while rest:
        root = rest.pop()
        factor = [-root, 1.0]
        if root and -root in rest:
            rest.remove(-root)
            factor = [-root * root, 0.0, 1.0]
        grown = [0.0] * (len(coefficients) + len(factor) - 1)
        for i, a in enumerate(coefficients):
            for j, b in enumerate(factor):
                grown[i + j] += a * b
        coefficients = grown
    return coefficients


@cache
def winograd_matrices_at_g_bt(output_tile: int) -> tuple[Matrix, Matrix, Matrix]:
    """A^T (m, m+2), G (m+2, 3) and B^T (m+2, m+2) of F(m, 3), m one of TILES, in double precision."""
    points = _INTERPOLATION_POINTS[output_tile]
    last = len(points)
    at, g, bt = np.zeros((output_tile, last + 1)), np.zeros((last + 1, FILTER_EXTENT)), np.zeros((last + 1, last + 1))
    for k, point in enumerate(points):
        other_points = tuple(p for p in points if p != point)
        at[:, k] = [point**i for i in range(output_tile)]
        g[k] = np.array([point**i for i in range(FILTER_EXTENT)]) / math.prod(point - p for p in other_points)
        bt[k, :last] = _polynomial_coefficients_lowest_first(other_points)
    at[output_tile - 1, last] = g[last, FILTER_EXTENT - 1] = 1.0
    bt[last] = _polynomial_coefficients_lowest_first(points)
    return at, g, bt
