"""Discard from the largest class: rare classes stay in the buffer.

A. Chrysakis, M.-F. Moens, *Online Continual Learning from Imbalanced Data* (ICML 2020): a full buffer makes
room by discarding a random sample of its largest class. A. Prabhu, P. H. S. Torr, P. K. Dokania, *GDumb: A
Simple Approach that Questions Our Progress in Continual Learning* (ECCV 2020), does the same.

Both decide about one arriving sample at a time, and treat an arrival of a large class in their own ways: the
first by a reservoir per class, the second by refusing it. Either lets samples of large classes grow old
without limit. Here, arrivals and stored samples of a class have equal chances. With m_c of class c, stored
and fresh, and a buffer of n < Σ_c m_c samples, class c has in the end

    n_c = min(m_c, L) or, for some classes with m_c > L drawn at random, L + 1,    Σ_c n_c = n.

So no class that is stored or arrives is lost as long as n is at least the number of classes, and within a
class the mean age is in expectation that of its m_c samples.
"""

from typing import ClassVar

import numpy as np
import numpy.typing as npt

from dufl.data.samples import Indices, Labels


class ClassBalanced:
    """Keeps the classes of a buffer as equal as possible."""

    among_fresh: ClassVar = True
    for_classes: ClassVar = True

    def __call__(
        self, born: Indices, count: int, generator: np.random.Generator, *, labels: Labels
    ) -> npt.ArrayLike:
        """The positions of `count` samples, each of the class that is largest without those before it.

        The samples of a class are numbered in a random order. Taking the largest class again and again takes
        the highest numbers first, with ties between classes at random.
        """
        order = generator.permutation(len(labels))
        by_class = order[np.argsort(labels[order], kind="stable")]
        grouped = labels[by_class]
        number = np.empty(len(labels), np.int64)
        number[by_class] = np.arange(len(labels)) - np.searchsorted(grouped, grouped)
        return np.lexsort((generator.random(len(labels)), -number))[:count]
