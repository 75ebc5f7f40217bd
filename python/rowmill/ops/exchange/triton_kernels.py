"""GPU kernels of `triton`. Shapes as in `layout`.

A program handles BLOCK ids, or ROWS rows of up to WIDTH floats. Results do not depend on the order in which programs run:
atomics only take a minimum or count, and every sum of floats is computed within one program.
"""

# Triton compiles the kernels, so Python's types do not describe their arguments.
# pyright: basic, reportArgumentType=false, reportOperatorIssue=false, reportIndexIssue=false
# pyright: reportAttributeAccessIssue=false, reportCallIssue=false

from rowmill._torch import torch_since

with torch_since("2.11", "an exchange of rows on a GPU"):
    import triton
    import triton.language as tl


@triton.jit
def _mix(bits):
    """As `owner_hash._mix`, on uint64."""
    bits = (bits ^ (bits >> 30)) * 0xBF58476D1CE4E5B9
    bits = (bits ^ (bits >> 27)) * 0x94D049BB133111EB
    return bits ^ (bits >> 31)


@triton.jit
def insert(ids, numbers, table, firsts, slots, count, last, BLOCK: tl.constexpr):
    """Find the slot of every key (id and category) in a hash table, and the first position of each slot's key.

    A slot holds the position of a lookup of its key. Keys are compared through it, with all 64 bits and the category.

    Args:
        ids: int64 [N].
        numbers: int32 [N], the category of each id, or -1 for padding, which gets no slot.
        table: int32 [slots], filled with -1; there are more slots than lookups.
        firsts: int32 [slots], filled with N; output: the first position of each slot's key.
        slots: int64 [N], output: the slot of each lookup.
        count: N.
        last: The highest slot, a power of two minus one.
        BLOCK: Ids per program.
    """
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < count
    id_ = tl.load(ids + at, mask=inside, other=0)
    number = tl.load(numbers + at, mask=inside, other=-1)
    wanted = number >= 0
    salt = (number.to(tl.uint64) + 1) * 0x9E3779B97F4A7C15
    slot = (_mix(id_.to(tl.uint64, bitcast=True) ^ salt) & last).to(tl.int64)
    looking = wanted
    while tl.max(looking.to(tl.int32), axis=0) > 0:
        # A lane that has found its slot compares with -2, which no slot holds, so its exchange changes nothing.
        held = tl.atomic_cas(table + slot, tl.where(looking, -1, -2), at)
        other = tl.where(held < 0, at, held)
        equal = tl.load(ids + other, mask=looking, other=0) == id_
        equal = equal & (tl.load(numbers + other, mask=looking, other=-1) == number)
        looking = looking & (equal == 0)
        slot = tl.where(looking, (slot + 1) & last, slot)
    tl.atomic_min(firsts + slot, at, mask=wanted)
    tl.store(slots + at, slot, mask=wanted)


@triton.jit
def lead(numbers, slots, firsts, leads, count, BLOCK: tl.constexpr):
    """Mark the first lookup of each key with 1 and other lookups with 0: int32 [N]."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < count
    wanted = tl.load(numbers + at, mask=inside, other=-1) >= 0
    slot = tl.load(slots + at, mask=wanted, other=0)
    first = tl.load(firsts + slot, mask=wanted, other=-1)
    tl.store(leads + at, (wanted & (first == at)).to(tl.int32), mask=inside)


@triton.jit
def number(ids, numbers, slots, firsts, ranked, unique, inverse, count, BLOCK: tl.constexpr):
    """Write the distinct ids and each lookup's position in them, given the prefix sum of first lookups."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < count
    wanted = tl.load(numbers + at, mask=inside, other=-1) >= 0
    slot = tl.load(slots + at, mask=wanted, other=0)
    first = tl.load(firsts + slot, mask=wanted, other=0)
    rank = tl.load(ranked + first, mask=wanted, other=0) - 1
    tl.store(inverse + at, rank, mask=inside)  # -1 for padding.
    id_ = tl.load(ids + at, mask=inside, other=0)
    tl.store(unique + rank, id_, mask=wanted & (first == at))


@triton.jit
def own(
    ids, numbers, states, owners, by_block, counts, count, categories, ranks, BLOCK: tl.constexpr
):
    """Write the owning rank of each id, and count ids per rank and program and per rank and category."""
    block = tl.program_id(0)
    at = block * BLOCK + tl.arange(0, BLOCK)
    inside = at < count
    id_ = tl.load(ids + at, mask=inside, other=0).to(tl.uint64, bitcast=True)
    category = tl.load(numbers + at, mask=inside, other=0)
    state = tl.load(states + category, mask=inside, other=0).to(tl.uint64, bitcast=True)
    owner = (((_mix(state ^ id_) >> 32) * ranks) >> 32).to(tl.int32)
    tl.store(owners + at, owner, mask=inside)
    tl.atomic_add(counts + owner * categories + category, 1, mask=inside)
    for rank in range(ranks):
        mine = (inside & (owner == rank)).to(tl.int32)
        tl.store(by_block + rank * tl.num_programs(0) + block, tl.sum(mine, axis=0))


@triton.jit
def place(ids, owners, before, out, positions, count, ranks, BLOCK: tl.constexpr):
    """Sort ids stably by rank: place each id after ids of its rank in earlier programs and lanes; write its position."""
    block = tl.program_id(0)
    at = block * BLOCK + tl.arange(0, BLOCK)
    inside = at < count
    owner = tl.load(owners + at, mask=inside, other=-1)
    position = tl.zeros([BLOCK], tl.int32)
    for rank in range(ranks):
        mine = owner == rank
        within = tl.cumsum(mine.to(tl.int32), axis=0) - 1
        begin = tl.load(before + rank * tl.num_programs(0) + block)
        position = tl.where(mine, begin + within, position)
    tl.store(positions + at, position, mask=inside)
    tl.store(out + position, tl.load(ids + at, mask=inside, other=0), mask=inside)


@triton.jit
def choose(inverse, positions, out, count, BLOCK: tl.constexpr):
    """Write the position of every lookup's row, or -1 for padding."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < count
    index = tl.load(inverse + at, mask=inside, other=-1)
    tl.store(out + at, tl.load(positions + index, mask=index >= 0, other=-1), mask=inside)


@triton.jit
def copy(source, sources, target, targets, widths, count, ROWS: tl.constexpr, WIDTH: tl.constexpr):
    """Copy rows of given widths between given offsets."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, WIDTH)
    inside = row < count
    width = tl.load(widths + row, mask=inside, other=0)
    begin = tl.load(sources + row, mask=inside, other=0)
    end = tl.load(targets + row, mask=inside, other=0)
    live = column[None, :] < width[:, None]
    floats = tl.load(source + begin[:, None] + column[None, :], mask=live, other=0.0)
    tl.store(target + end[:, None] + column[None, :], floats, mask=live)


@triton.jit
def pool(
    wire, starts, factors, offsets, dims, columns, divisors, out, bags, width,
    ROWS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Pool one bag per program: the sum of weight times row, divided by the divisor; start -1 means padding."""
    bag = tl.program_id(0).to(tl.int64)
    feature = bag // bags
    column = tl.arange(0, WIDTH)
    live = column < tl.load(dims + feature)
    at = tl.load(offsets + bag)
    end = tl.load(offsets + bag + 1)
    total = tl.zeros([WIDTH], tl.float32)
    while at < end:
        lookup = at + tl.arange(0, ROWS)
        start = tl.load(starts + lookup, mask=lookup < end, other=-1)
        factor = tl.load(factors + lookup, mask=lookup < end, other=0.0)
        mask = (start >= 0)[:, None] & live[None, :]
        floats = tl.load(wire + start[:, None] + column[None, :], mask=mask, other=0.0)
        total += tl.sum(floats * factor[:, None], axis=0)
        at += ROWS
    to = (bag % bags) * width + tl.load(columns + feature) + column
    tl.store(out + to, total / tl.load(divisors + bag), mask=live)


@triton.jit
def add_runs(
    source, sources, factors, target, targets, widths, order, keys, count,
    ROWS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Add all rows of one key to the key's row of the target. The program at the first row of a key does the sum.

    Args:
        source: Floats.
        sources: int64 [N], offset of each row in `source`.
        factors: float32 [N], the weight of each row.
        target: Floats, added to.
        targets: int64 [N], offset in `target` to which each row is added.
        widths: int64 [N], floats of each row.
        order: int64 [N], row numbers, stably sorted by key.
        keys: int32 [N], the sorted keys; rows of key -1 are skipped.
        count: N.
        ROWS: Rows added at a time; it fixes the order of summation.
        WIDTH: At least the largest width.
    """
    at = tl.program_id(0)
    key = tl.load(keys + at)
    before = tl.load(keys + at - 1, mask=at > 0, other=-1)
    if (key >= 0) & (key != before):
        first = tl.load(order + at)
        column = tl.arange(0, WIDTH)
        live = column < tl.load(widths + first)
        to = target + tl.load(targets + first) + column
        total = tl.load(to, mask=live, other=0.0)
        more = 1
        while more > 0:
            run = at + tl.arange(0, ROWS)
            same = tl.load(keys + run, mask=run < count, other=-1) == key
            row = tl.load(order + run, mask=same, other=0)
            start = tl.load(sources + row, mask=same, other=0)
            factor = tl.load(factors + row, mask=same, other=0.0)
            mask = same[:, None] & live[None, :]
            floats = tl.load(source + start[:, None] + column[None, :], mask=mask, other=0.0)
            total += tl.sum(floats * factor[:, None], axis=0)
            more = tl.sum(same.to(tl.int32), axis=0) // ROWS
            at += ROWS
        tl.store(to, total, mask=live)


@triton.jit
def multiply(
    wire, starts, vectors, begins, widths, out, count, ROWS: tl.constexpr, WIDTH: tl.constexpr
):
    """Write the dot product of every lookup's row and vector, float32 [N]; 0 where start is -1 (padding)."""
    lookup = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, WIDTH)
    inside = lookup < count
    start = tl.load(starts + lookup, mask=inside, other=-1)
    begin = tl.load(begins + lookup, mask=inside, other=0)
    width = tl.load(widths + lookup, mask=inside, other=0)
    live = (start >= 0)[:, None] & (column[None, :] < width[:, None])
    row = tl.load(wire + start[:, None] + column[None, :], mask=live, other=0.0)
    vector = tl.load(vectors + begin[:, None] + column[None, :], mask=live, other=0.0)
    tl.store(out + lookup, tl.sum(row * vector, axis=1), mask=inside)
