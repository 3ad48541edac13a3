# mypy: disallow-untyped-decorators=False, disallow-untyped-calls=False
# (Numba carries no types.)
"""A Numba type for vectors of LANES numbers, with the operations that the kernel needs.

The compiler does not find the kernel's tile by itself: it prefers vectors of half the processor's width, and
cannot know that weights and features do not overlap. So the operations are written out. A vector fills one
register of the processor, and a tile leaves room for its operands. Sums are kept apart in CHUNK lanes,
whatever the width of a vector: this fixes the order of every sum, and every bit, for all processors.
"""

from collections.abc import Callable, Iterable
from typing import Any

from llvmlite import ir
from numba import extending, types
from numba.core import cgutils
from numba.core.registry import cpu_target
from numba.extending import models, register_model

intrinsic: Any = extending.intrinsic  # called without its first argument, which types cannot express

CHUNK = 16  # numbers of which the lanes are summed apart, whatever the width of a vector; 64 bytes


def lanes_of(features: str) -> int:
    """The 32-bit numbers per register of a processor with these features, as LLVM names them."""
    present = features.split(",")
    return 16 if "+avx512f" in present else 8 if "+avx2" in present else 4


LANES = lanes_of(cpu_target.target_context.codegen().magic_tuple()[2])  # of what Numba compiles for
TALL = 2 if LANES == 8 else 4  # samples (logits) or vectors of features (gradient) per tile
WIDE = 5  # classes per tile: 4·5 sums + 4 + 5 operands, of 32 registers; with AVX2 2·5 + 2 + 1, of 16
PARTS = CHUNK // LANES  # vectors per chunk
STRIP = TALL * LANES  # features per tile of the gradient


class _Lanes(types.Type):
    """The Numba type of LANES 32-bit numbers."""


_LANES = _Lanes("Lanes")
_FLOATS = ir.VectorType(ir.FloatType(), LANES)
_INT, _INDEX = ir.IntType(32), ir.IntType(64)
_TILE = types.UniTuple(_LANES, TALL * WIDE)
_Intrinsic = tuple[Any, Callable[..., Any]]  # its Numba signature and its code generator


@register_model(_Lanes)
class _LanesModel(models.PrimitiveModel):
    def __init__(self, manager: Any, kind: _Lanes) -> None:
        super().__init__(manager, kind, _FLOATS)


def _call(builder: Any, name: str, result: Any, *arguments: Any) -> Any:
    """Call an LLVM intrinsic by name."""
    kind = ir.FunctionType(result, [a.type for a in arguments])
    return builder.call(cgutils.get_or_insert_function(builder.module, kind, name), arguments)


def _at(context: Any, builder: Any, kind: Any, array: Any, indices: list[Any], to: Any) -> Any:
    """The address of array[indices], as a pointer to `to`."""
    items = context.make_array(kind)(context, builder, array)
    where = cgutils.get_item_pointer(context, builder, kind, items, indices)
    return builder.bitcast(where, to.as_pointer())


def _plus(builder: Any, index: Any, number: int) -> Any:
    return builder.add(index, ir.Constant(index.type, number))


def _numbers(values: Iterable[int]) -> Any:
    numbers = [ir.Constant(_INT, v) for v in values]
    return ir.Constant(ir.VectorType(_INT, len(numbers)), numbers)


def _everywhere(builder: Any, value: Any) -> Any:
    """The same value in all lanes."""
    empty = ir.Constant(ir.VectorType(value.type, LANES), ir.Undefined)
    first = builder.insert_element(empty, value, ir.Constant(_INT, 0))
    return builder.shuffle_vector(first, empty, _numbers([0] * LANES))


def _vector(context: Any, builder: Any, kind: Any, array: Any, indices: list[Any]) -> Any:
    """LANES numbers from array[indices] on."""
    return builder.load(_at(context, builder, kind, array, indices, _FLOATS), align=4)


def _joined(builder: Any, vectors: list[Any]) -> Any:
    """One vector with the lanes of all, whose number is a power of two."""
    while len(vectors) > 1:
        both, pairs = (
            _numbers(range(2 * vectors[0].type.count)),
            zip(vectors[::2], vectors[1::2], strict=True),
        )
        vectors = [builder.shuffle_vector(x, y, both) for x, y in pairs]
    return vectors[0]


@intrinsic
def zeros(typing: Any) -> _Intrinsic:
    """A tile of zeros."""

    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return ir.Constant(context.get_value_type(_TILE), None)

    return _TILE(), code


@intrinsic
def add_outer(typing: Any, tile: Any, tall: Any, wide: Any) -> _Intrinsic:
    """tile[i, k] + tall[i]·wide[k], each rounded once."""

    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        sums, x, y = (cgutils.unpack_tuple(builder, a) for a in arguments)
        pairs = [(i, k) for i in range(TALL) for k in range(WIDE)]
        name = f"llvm.fma.v{LANES}f32"
        added = [_call(builder, name, _FLOATS, x[i], y[k], sums[i * WIDE + k]) for i, k in pairs]
        return context.make_tuple(builder, _TILE, added)

    return _TILE(tile, tall, wide), code


@intrinsic
def samples(typing: Any, x: Any, at: Any, b: Any, j: Any) -> _Intrinsic:
    """Vector j of the TALL samples from b on: x[at[b + i], LANES·j + lane]."""
    vectors = types.UniTuple(_LANES, TALL)

    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        array, rows, first, vector = arguments
        column = builder.mul(vector, ir.Constant(vector.type, LANES))
        places = [_at(context, builder, at, rows, [_plus(builder, first, i)], _INDEX) for i in range(TALL)]
        loaded = [_vector(context, builder, x, array, [builder.load(p), column]) for p in places]
        return context.make_tuple(builder, vectors, loaded)

    return vectors(x, at, types.int64, types.int64), code


@intrinsic
def strip(typing: Any, x: Any, row: Any, j: Any) -> _Intrinsic:
    """TALL vectors of a sample: x[row, LANES·(j + i) + lane]."""
    vectors = types.UniTuple(_LANES, TALL)

    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        array, r, vector = arguments
        column = builder.mul(vector, ir.Constant(vector.type, LANES))
        steps = [_plus(builder, column, LANES * i) for i in range(TALL)]
        loaded = [_vector(context, builder, x, array, [r, at]) for at in steps]
        return context.make_tuple(builder, vectors, loaded)

    return vectors(x, types.int64, types.int64), code


@intrinsic
def weights_of(typing: Any, packed: Any, chunk: Any, c: Any) -> _Intrinsic:
    """packed[chunk, c + k, :]."""
    vectors = types.UniTuple(_LANES, WIDE)

    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        array, j, k = arguments
        where = _at(context, builder, packed, array, [j, k, ir.Constant(j.type, 0)], _FLOATS)
        each = [builder.gep(where, [ir.Constant(_INT, n)]) for n in range(WIDE)]
        return context.make_tuple(builder, vectors, [builder.load(a, align=4) for a in each])

    return vectors(packed, types.int64, types.int64), code


@intrinsic
def spread_errors(typing: Any, errors: Any, c: Any, b: Any) -> _Intrinsic:
    """errors[c + k, b], each in all lanes of a vector."""
    vectors = types.UniTuple(_LANES, WIDE)

    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        array, k, i = arguments
        at = [[_plus(builder, k, n), i] for n in range(WIDE)]
        each = [builder.load(_at(context, builder, errors, array, a, ir.FloatType())) for a in at]
        return context.make_tuple(builder, vectors, [_everywhere(builder, value) for value in each])

    return vectors(errors, types.int64, types.int64), code


@intrinsic
def store(typing: Any, packed: Any, chunk: Any, c: Any, tile: Any) -> _Intrinsic:
    """packed[chunk + i, c + k, :] = tile[i, k]."""

    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        array, j, k, sums = arguments
        for n, value in enumerate(cgutils.unpack_tuple(builder, sums)):
            at = [_plus(builder, j, n // WIDE), _plus(builder, k, n % WIDE), ir.Constant(j.type, 0)]
            builder.store(value, _at(context, builder, packed, array, at, _FLOATS), align=4)
        return context.get_dummy_value()

    return types.void(packed, types.int64, types.int64, tile), code


@intrinsic
def add_sums(typing: Any, logits: Any, c: Any, b: Any, sums: Any) -> _Intrinsic:
    """logits[c + k, b + i] += the sum over a chunk of tile[i, k]; `sums` holds the tiles of its parts."""

    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        array, k, i, parts = arguments

        def held(vector: int, n: int) -> Any:
            at = [ir.Constant(k.type, index) for index in (vector, n, 0)]
            return _vector(context, builder, sums, parts, at)

        for n in range(WIDE):
            v = _joined(builder, [held(p * TALL + m, n) for m in range(TALL) for p in range(PARTS)])
            for run in (4, 4, 2, 1):  # add every run of lanes to the next run
                even = [lane for lane in range(v.type.count) if lane // run % 2 == 0]
                low = builder.shuffle_vector(v, v, _numbers(even))
                v = builder.fadd(low, builder.shuffle_vector(v, v, _numbers([lane + run for lane in even])))
            where = _at(context, builder, logits, array, [_plus(builder, k, n), i], v.type)
            builder.store(builder.fadd(builder.load(where, align=4), v), where, align=4)
        return context.get_dummy_value()

    return types.void(logits, types.int64, types.int64, sums), code


def _fetch(locality: int) -> Any:
    @intrinsic
    def fetch(typing: Any, x: Any, row: Any, j: Any) -> _Intrinsic:
        def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            array, r, vector = arguments
            hints = [ir.Constant(_INT, value) for value in (0, locality, 1)]  # to read; how near; data
            column = builder.mul(vector, ir.Constant(vector.type, LANES))
            for line in range(0, STRIP, CHUNK):  # of the cache
                where = _at(context, builder, x, array, [r, _plus(builder, column, line)], ir.IntType(8))
                _call(builder, "llvm.prefetch.p0", ir.VoidType(), where, *hints)
            return context.get_dummy_value()

        return types.void(x, types.int64, types.int64), code

    return fetch


fetch_near, fetch_far = _fetch(3), _fetch(2)  # the cache lines of a strip into the first or second cache
