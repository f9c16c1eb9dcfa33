// Makes parts of an operand of a product, and multiplies by them.
#include "vnpu/made.h"

#include <stdint.h>
#include <string.h>

#include "vnpu/entry.h"
#include "vnpu/product_few_made.h"

namespace vnpu {

namespace {

constexpr i64 kGuardElements = 64;  // on either side of what a function makes
// Columns of one product, and bytes that are made for it. Of few rows, what is made is read from L2. Of many, it is read once
// and packed; then the rows are packed for every part.
constexpr i64 kFewRows = 32, kColumnsOfFewRows = 128, kBytesOfFewRows = 1 << 20;
constexpr i64 kColumns = 512, kBytes = 8 << 20;

i64 least(i64 one, i64 other) { return one < other ? one : other; }

i64 extent_of(const Axes &axes) {
  i64 count = 1;
  for (int i = 0; i < axes.count; ++i) count *= axes.list[i].extent;
  return count;
}

// The same walk without axes of one step.
Axes without_ones(const Axes &axes) {
  Axes others{0, {}};
  for (int i = 0; i < axes.count; ++i) {
    if (axes.list[i].extent > 1) others.list[others.count++] = axes.list[i];
  }
  return others;
}

void append(Axes &axes, const Axis &axis) { axes.list[axes.count++] = axis; }

// The sum of steps to a place along some axes.
i64 at(const Axes &axes, i64 place, i64 Axis::*step) {
  i64 total = 0;
  for (int i = axes.count - 1; i >= 0; --i) {
    total += place % axes.list[i].extent * (axes.list[i].*step);
    place /= axes.list[i].extent;
  }
  return total;
}

// Whether the elements of blocks of 8 n by `depth` k that these axes lead to are those with n, or with k, from 0 on.
bool are_in_order(const Axes &axes, i64 depth, bool is_of_k) {
  for (i64 i = 0; i < extent_of(axes); ++i) {
    if (at(axes, i, &Axis::first) != (is_of_k ? i * 8 : i / 8 * 8 * depth + i % 8)) return false;
  }
  return true;
}

void fill(i64 bytes, int8_t *source) {
  for (i64 at = 0; at < bytes; ++at) source[at] = int8_t(at * 167 + 13);
}

// An element of a piece as bf16; no bf16 if it is none.
uint32_t element_of(const uint32_t *piece, i64 n, i64 step) {
  if (MadePairs::kAreWide) {
    const uint32_t bits = piece[step * MadePairs::kColumns + n];
    return bits << 16 | bits >> 16;
  }
  const uint32_t pair = piece[step / 2 * MadePairs::kColumns + n];
  return step % 2 ? pair >> 16 : pair & 0xffff;
}

}  // namespace

Made::Made(Function function, const Axes &source, i64 count, i64 start, i64 argument, const Axes &outer, const Axes &depth)
    : function_(function),
      source_(without_ones(source)),
      outer_(outer),
      depth_(depth),
      count_(count),
      start_(start),
      argument_(argument),
      can_read_operand_(depends_on_arguments_alone()),
      pairs_(can_read_operand_ ? checked_pairs() : nullptr) {}

bool Made::depends_on_arguments_alone() const {
  Blocks blocks;
  const i64 bytes = extent_of(source_), all = count_ + 2 * kGuardElements;
  int8_t *const source = blocks.alloc<int8_t>(bytes);
  uint16_t *made[2];
  const uint32_t modes = exchange_modes(kFloor);
  bool is_same = true;
  for (int i = 0; i < 2; ++i) {
    made[i] = blocks.alloc<uint16_t>(all);
    fill(bytes, source);
    for (i64 at = 0; at < all; ++at) made[i][at] = i ? 0x5aa5 : 0xa55a;
    function_(int32_t(argument_), source, reinterpret_cast<bf16 *>(made[i] + kGuardElements));
    for (i64 at = 0; at < bytes; ++at) is_same &= source[at] == int8_t(at * 167 + 13);
    for (i64 at = 0; at < kGuardElements; ++at) {
      is_same &= made[i][at] == made[i][0] && made[i][kGuardElements + count_ + at] == made[i][0];
    }
    is_same &= made[i][0] == (i ? 0x5aa5 : 0xa55a);
  }
  exchange_modes(modes);
  return is_same && memcmp(made[0] + kGuardElements, made[1] + kGuardElements, size_t(count_) * sizeof(uint16_t)) == 0;
}

// The form by pairs, if there is one that gives the same.
const MadePairs *Made::checked_pairs() const {
  const MadePairs *const form = MadePairs::of(reinterpret_cast<const void *>(function_));
  if (!form || start_ || count_ != MadePairs::kColumns * form->parts * form->depth) return nullptr;
  const i64 depth = form->depth, bytes = extent_of(source_);
  Blocks blocks;
  int8_t *const source = blocks.alloc<int8_t>(bytes);
  uint16_t *const made = blocks.alloc<uint16_t>(count_);
  uint32_t *const piece = blocks.alloc<uint32_t>(MadePairs::kElements);
  fill(bytes, source);
  const uint32_t modes = exchange_modes(kFloor);
  function_(int32_t(argument_), source, reinterpret_cast<bf16 *>(made));
  bool is_same = true;
  for (i64 part = 0; part < form->parts; ++part) {
    const uint8_t *const from = reinterpret_cast<const uint8_t *>(source) + part * (bytes / form->parts);
    for (i64 first = 0; first < depth; first += MadePairs::kSteps) {
      form->make(int32_t(argument_), from, first, piece);
      for (i64 i = 0; i < MadePairs::kColumns * MadePairs::kSteps; ++i) {
        const i64 n = part * MadePairs::kColumns + i % MadePairs::kColumns, step = i / MadePairs::kColumns;
        is_same &= element_of(piece, i % MadePairs::kColumns, step) == made[n / 8 * 8 * depth + (first + step) * 8 + n % 8];
      }
    }
  }
  exchange_modes(modes);
  return is_same ? form : nullptr;
}

// A product, its axes told apart: those along which another tile is made, and those within one.
class Made::Work {
 public:
  Work(const Made &made, const Product &product, bf16 *c, Points points)
      : made_(made), product_(product), c_(c), points_{points.m, 0} {
    for (int i = 0; i < product.n.count; ++i) {
      const Axis &axis = product.n.list[i], &within = made.outer_.list[i];
      if (axis.first || within.second) append(tiles_, {axis.extent, axis.first, within.second}), append(tiles_of_c_, axis);
      else append(columns_, {axis.extent, within.first, axis.second});
    }
    for (int i = 0; i < product.k.count; ++i) {
      const Axis &axis = product.k.list[i], &within = made.depth_.list[i];
      if (axis.second || within.second) append(steps_, {axis.extent, axis.second, within.second});
    }
    depth_ = extent_of(steps_);
    tile_ = depth_ * made.count_;
  }

  void run() const {
    if (made_.pairs_ && product::rows_of(product_) <= kFewRows && is_in_order() && multiply_few()) return;
    const i64 tiles = extent_of(tiles_), columns = extent_of(columns_), rows = product::rows_of(product_);
    const bool are_few = rows <= kFewRows;
    const i64 wanted = (are_few ? kColumnsOfFewRows : kColumns) / columns, threads = parallel_threads();
    const i64 fit = (are_few ? kBytesOfFewRows : kBytes) / (tile_ * i64(sizeof(bf16)));
    i64 each = least(least(wanted, fit), (tiles + threads - 1) / threads);
    const i64 last = tiles_.count ? tiles_.list[tiles_.count - 1].extent : 1;
    if (each > last) each = last;
    while (each > 1 && last % each) --each;
    if (each < 1) each = 1;
    parallel(tiles / each, [&](i64 part) { multiply(part * each, each); });
  }

 private:
  // Whether the columns of a tile follow each other in the product, and the steps that are made together do.
  bool is_in_order() const {
    const i64 depth = made_.pairs_->depth;
    Axes n{0, {}}, k{0, {}};
    bool is_outer = true;
    for (int i = 0; i < product_.n.count; ++i) {
      const Axis &within = made_.outer_.list[i];
      const bool moves = product_.n.list[i].first || within.second;
      if (moves && !is_outer) return false;
      if (!moves) append(n, {product_.n.list[i].extent, within.first, 0}), is_outer = false;
    }
    is_outer = true;
    for (int i = 0; i < product_.k.count; ++i) {
      const Axis &within = made_.depth_.list[i];
      const bool moves = product_.k.list[i].second || within.second;
      if (moves && !is_outer) return false;
      if (!moves) append(k, {product_.k.list[i].extent, within.first, 0}), is_outer = false;
    }
    return extent_of(n) * depth == made_.count_ && extent_of(k) == depth && are_in_order(n, depth, false) &&
           are_in_order(k, depth, true);
  }

  // Multiplies few rows by what is made by pairs; false, and nothing done, if there is no micro-kernel for it.
  bool multiply_few() const {
    switch (dots::order_of(product_.block_steps, product_.block_columns)) {
#if defined(VNPU_BF16_PAIRS)
      case dots::Order::kPairs: return multiply_few_by<product::FewPairs>();
#endif
      case dots::Order::kOneByOne: return multiply_few_by<product::FewMadePlain>();
      default: return false;
    }
  }

  template <class Kernel>
  bool multiply_few_by() const {
    if constexpr (same_type<Kernel, product::Unserved>) return false;
    else {
      const Axes &source = made_.source_;
      const i64 bytes = extent_of(source), parts = made_.pairs_->parts, part = bytes / parts;
      const bool is_dense = source.count == 1 && source.list[0].first == 1;
      const bool is_in_parts = source.count == 2 && source.list[0].extent == parts && source.list[1].first == 1;
      if (!is_dense && !is_in_parts) return false;
      Product product = product_;
      if (c_) product.rounded = c_;
      Blocks blocks;
      product::MadeCalls::Call *const of_steps = blocks.alloc<product::MadeCalls::Call>(depth_);
      for (i64 step = 0; step < depth_; ++step) {
        of_steps[step] = {at(steps_, step, &Axis::first), at(steps_, step, &Axis::second)};
      }
      product::FewMade<Kernel> few(product, {made_.pairs_, of_steps, depth_, is_dense ? part : source.list[0].first});
      if (!few.serves()) return false;
      few.run([&](i64 tile) {
        return product::MadeCalls::Call{at(tiles_, tile, &Axis::first), made_.argument_ + at(tiles_, tile, &Axis::second)};
      });
      return true;
    }
  }

  // The columns of some tiles, neighbours along the last axis.
  void multiply(i64 first, i64 count) const {
    check_running();
    Blocks blocks;
    bf16 *const made = blocks.alloc<bf16>(count * tile_);
    make(blocks, first, count, made);
    Product part = product_;
    part.b = made + made_.start_;
    const i64 in_c = at(tiles_of_c_, first, &Axis::second);
    part.n = {0, {}};
    if (tiles_.count) append(part.n, {count, tile_, tiles_of_c_.list[tiles_.count - 1].second});
    for (int i = 0; i < columns_.count; ++i) append(part.n, columns_.list[i]);
    i64 step = made_.count_;
    for (int i = part.k.count - 1; i >= 0; --i) {
      Axis &axis = part.k.list[i];
      const Axis &within = made_.depth_.list[i];
      const bool moves = axis.second || within.second;
      axis.second = moves ? step : within.first;
      if (moves) step *= axis.extent;
    }
    if (c_) return vnpu::multiply_rounded(part, c_ + in_c, points_);
    part.c += in_c;
    vnpu::multiply_add(part);
  }

  void make(Blocks &blocks, i64 first, i64 count, bf16 *to) const {
    const i64 bytes = extent_of(made_.source_);
    const bool is_dense = made_.source_.count == 1 && made_.source_.list[0].first == 1;
    int8_t *const copy = is_dense ? nullptr : blocks.alloc<int8_t>(bytes);
    const int8_t *const begin = reinterpret_cast<const int8_t *>(product_.b), *copied = nullptr;
    const uint32_t modes = exchange_modes(kFloor);
    for (i64 tile = first; tile < first + count; ++tile) {
      for (i64 step = 0; step < depth_; ++step, to += made_.count_) {
        const int8_t *const from = begin + at(tiles_, tile, &Axis::first) + at(steps_, step, &Axis::first);
        const i64 argument = made_.argument_ + at(tiles_, tile, &Axis::second) + at(steps_, step, &Axis::second);
        if (copy && from != copied) gather(from, copy), copied = from;
        made_.function_(int32_t(argument), copy ? copy : const_cast<int8_t *>(from), to);
      }
    }
    exchange_modes(modes);
  }

  // The bytes that a DMA brings.
  void gather(const int8_t *from, int8_t *to) const {
    const Axes &axes = made_.source_;
    const Axis &inner = axes.list[axes.count - 1];
    const i64 runs = extent_of(axes) / inner.extent;
    for (i64 run = 0; run < runs; ++run, to += inner.extent) {
      const int8_t *const begin = from + at(axes, run * inner.extent, &Axis::first);
      if (inner.first == 1) memcpy(to, begin, size_t(inner.extent));
      else
        for (i64 i = 0; i < inner.extent; ++i) to[i] = begin[i * inner.first];
    }
  }

  const Made &made_;
  const Product &product_;
  bf16 *const c_;
  const Points points_;
  Axes tiles_{0, {}}, tiles_of_c_{0, {}}, columns_{0, {}}, steps_{0, {}};
  i64 depth_, tile_;  // tile_: elements that are made for all steps of one tile
};

void Made::multiply(const Product &product, bf16 *c, Points points) const { Work(*this, product, c, points).run(); }

}  // namespace vnpu
