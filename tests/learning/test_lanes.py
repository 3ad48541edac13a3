"""The width of vectors follows what Numba compiles for, and changes no bit."""

import os
import subprocess
import sys

import llvmlite.binding as llvm
import numpy as np
import pytest

from dufl.learning.lanes import CHUNK, LANES, PARTS, lanes_of

BITS = """
import sys
import numpy as np
from dufl.learning.lanes import LANES
from dufl.learning.logistic import evaluate_logistic, train_logistic
results = []
for num_features, num_classes in [(7, 3), (64, 10), (70, 6), (1030, 7)]:
    generator = np.random.default_rng(num_features)
    weights = generator.standard_normal(num_classes * (num_features + 1), dtype=np.float32)
    features = generator.random((37, num_features), dtype=np.float32)
    labels = generator.integers(0, num_classes, 37)
    order = np.stack([generator.permutation(37) for _ in range(3)])
    trained = train_logistic(weights, features, labels, order, 16, 0.02, 0.9)
    results.append(trained.tobytes().hex() + str(evaluate_logistic(trained, features, labels, num_classes)))
print(LANES, *results)
"""


def bits(without: tuple[str, ...], cache: str) -> list[str]:
    """The lanes, and the bits of a few trainings compiled for this processor without some features."""
    known = llvm.get_host_cpu_features().items()
    features = ["-" + name if name.startswith(without) else "+" + name for name, has in known if has]
    variables = {**os.environ, "NUMBA_CPU_NAME": "generic", "NUMBA_CPU_FEATURES": ",".join(features)}
    variables["NUMBA_CACHE_DIR"] = cache
    run = subprocess.run(
        [sys.executable, "-c", BITS], env=variables, capture_output=True, text=True, check=True
    )
    lanes, *results = run.stdout.split(" ", 1)
    return [lanes, *results]


def test_the_width_is_that_of_the_processor() -> None:
    assert lanes_of("+avx,+avx2,+avx512f,+fma") == 16
    assert lanes_of("+avx,+avx2,-avx512f,+fma") == 8  # switched off
    assert lanes_of("+neon,+fp-armv8") == lanes_of("") == 4
    assert CHUNK == LANES * PARTS


@pytest.mark.slow
@pytest.mark.skipif(not llvm.get_host_cpu_features().get("avx2"), reason="needs AVX2")
def test_narrower_vectors_give_the_same_bits(tmp_path_factory: pytest.TempPathFactory) -> None:
    def found(*without: str) -> list[str]:
        return bits(without, str(tmp_path_factory.mktemp("cache")))

    native, double, single = found("none"), found("avx512", "avx10"), found("avx512", "avx10", "avx2")
    assert [native[0], double[0], single[0]] == [str(LANES), "8", "4"]
    np.testing.assert_array_equal([double[1], single[1]], [native[1]] * 2)
