# mypy: disallow-untyped-decorators=False, disallow-untyped-calls=False
# (Numba carries no types.)
"""A Numba type for vectors of LANES numbers, with the operations that the kernel needs.

The compiler does not find the kernel's tile by itself: it prefers vectors of half the processor's width, and
cannot know that weights and features do not overlap. So the operations are written out. This also fixes the
order of every sum, whatever the width of the processor's vectors.
"""

from collections.abc import Callable, Iterable
from typing import Any

from llvmlite import ir
from numba import extending, types
from numba.core import cgutils
from numba.extending import models, register_model

intrinsic: Any = extending.intrinsic  # called without its first argument, which types cannot express

LANES = 16  # numbers per vector: 512 bits, or two registers of 256
TALL = 4  # samples (logits) or chunks of features (gradient) per tile
WIDE = 5  # classes per tile: 4·5 sums + 4 + 5 operands, of 32 registers


class _Lanes(types.Type):
    """The Numba type of LANES 32-bit numbers."""


_LANES = _Lanes("Lanes")
_FLOATS, _INT = ir.VectorType(ir.FloatType(), LANES), ir.IntType(32)
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


def _chunk(context: Any, builder: Any, kind: Any, features: Any, row: Any, chunk: Any, left: Any) -> Any:
    """features[row, LANES·chunk + lane] in the lanes below `left`, which are inside the row; 0 in others."""
    lanes = ir.Constant(ir.VectorType(left.type, LANES), [ir.Constant(left.type, n) for n in range(LANES)])
    inside = builder.icmp_signed("<", lanes, _everywhere(builder, left))
    first = builder.mul(chunk, ir.Constant(chunk.type, LANES))
    where = _at(context, builder, kind, features, [row, first], _FLOATS)
    aligned, zero = ir.Constant(_INT, 4), ir.Constant(_FLOATS, None)
    return _call(builder, f"llvm.masked.load.v{LANES}f32.p0", _FLOATS, where, aligned, inside, zero)


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
def samples(typing: Any, features: Any, rows: Any, chunk: Any, left: Any) -> _Intrinsic:
    """The same chunk of TALL samples."""
    vectors = types.UniTuple(_LANES, TALL)

    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        array, samples, j, inside = arguments
        each = cgutils.unpack_tuple(builder, samples)
        loaded = [_chunk(context, builder, features, array, row, j, inside) for row in each]
        return context.make_tuple(builder, vectors, loaded)

    return vectors(features, rows, types.int64, types.int64), code


@intrinsic
def chunks(typing: Any, features: Any, row: Any, chunk: Any, left: Any) -> _Intrinsic:
    """TALL chunks of the same sample."""
    vectors = types.UniTuple(_LANES, TALL)

    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        array, r, j, inside = arguments
        steps = [(_plus(builder, j, i), _plus(builder, inside, -LANES * i)) for i in range(TALL)]
        loaded = [_chunk(context, builder, features, array, r, at, rest) for at, rest in steps]
        return context.make_tuple(builder, vectors, loaded)

    return vectors(features, types.int64, types.int64, types.int64), code


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
def add_sums(typing: Any, logits: Any, c: Any, b: Any, tile: Any) -> _Intrinsic:
    """logits[c + k, b + i] += the sum over the lanes of tile[i, k]."""

    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        array, k, i, sums = arguments
        vectors = cgutils.unpack_tuple(builder, sums)

        def halve(pair: tuple[Any, Any], run: int) -> Any:
            """Add every run of lanes of the pair to the next run."""
            size = pair[0].type.count
            even = [n for n in range(2 * size) if n // run % 2 == 0]
            low = builder.shuffle_vector(*pair, _numbers(even))
            return builder.fadd(low, builder.shuffle_vector(*pair, _numbers([n + run for n in even])))

        for n in range(WIDE):
            v = [vectors[i * WIDE + n] for i in range(TALL)]
            one = halve((halve((v[0], v[1]), 4), halve((v[2], v[3]), 4)), 4)  # four lanes per vector
            pair = halve((one, ir.Constant(one.type, ir.Undefined)), 2)
            four = builder.shuffle_vector(pair, pair, _numbers([0, 2, 4, 6]))
            four = builder.fadd(four, builder.shuffle_vector(pair, pair, _numbers([1, 3, 5, 7])))
            where = _at(context, builder, logits, array, [_plus(builder, k, n), i], four.type)
            builder.store(builder.fadd(builder.load(where, align=4), four), where, align=4)
        return context.get_dummy_value()

    return types.void(logits, types.int64, types.int64, tile), code


def _fetch(locality: int) -> Any:
    @intrinsic
    def fetch(typing: Any, features: Any, row: Any, chunk: Any) -> _Intrinsic:
        def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            array, r, j = arguments
            hints = [ir.Constant(_INT, value) for value in (0, locality, 1)]  # to read; how near; data
            for i in range(TALL):
                first = builder.mul(_plus(builder, j, i), ir.Constant(j.type, LANES))
                where = _at(context, builder, features, array, [r, first], ir.IntType(8))
                _call(builder, "llvm.prefetch.p0", ir.VoidType(), where, *hints)
            return context.get_dummy_value()

        return types.void(features, types.int64, types.int64), code

    return fetch


fetch_near, fetch_far = _fetch(3), _fetch(2)  # TALL chunks of a row into the first or second cache
