// Strided copies between two sides of a transfer. Compiled once per shared object.
#include <stdlib.h>
#include <string.h>

#include "vnpu/heartbeat.h"
#include "vnpu/memory.h"

namespace vnpu {

namespace {

struct Loop {
  i64 size, dst, src;  // iterations, and bytes per step on either side
};

// A side's dimensions, innermost first; neighbours that form one run are merged.
struct Side {
  int rank = 0;
  i64 size[kMaxRank + 1], step[kMaxRank + 1];
  explicit Side(const Access &a) {
    for (int i = a.rank - 1; i >= 0; --i) {
      if (a.sizes[i] == 1) continue;
      if (rank > 0 && a.strides[i] == size[rank - 1] * step[rank - 1]) {
        size[rank - 1] *= a.sizes[i];
      } else {
        size[rank] = a.sizes[i];
        step[rank++] = a.strides[i];
      }
    }
  }
  bool is_run() const { return rank == 0 || (rank == 1 && step[0] == 1); }
};

template <int Bytes>
void copy_run(char *dst, const char *src, i64 count, i64 dst_step, i64 src_step) {
  constexpr i64 kFirstDistance = 16;
  for (i64 i = 0; i < count; ++i) {
    // A CPU prefetches steps of about one line by itself; longer steps need a prefetch instruction.
    for (int line = 0; Bytes >= 64 && line < Bytes; line += 64)
      __builtin_prefetch(src + (i + kFirstDistance) * src_step + line);
    memcpy(dst + i * dst_step, src + i * src_step, Bytes);
  }
}

// `count` blocks of `bytes`.
void copy_blocks(char *dst, const char *src, i64 bytes, i64 count, i64 dst_step, i64 src_step) {
  switch (bytes) {
    case 1: return copy_run<1>(dst, src, count, dst_step, src_step);
    case 2: return copy_run<2>(dst, src, count, dst_step, src_step);
    case 4: return copy_run<4>(dst, src, count, dst_step, src_step);
    case 8: return copy_run<8>(dst, src, count, dst_step, src_step);
    case 16: return copy_run<16>(dst, src, count, dst_step, src_step);
    case 32: return copy_run<32>(dst, src, count, dst_step, src_step);
    case 64: return copy_run<64>(dst, src, count, dst_step, src_step);
    case 128: return copy_run<128>(dst, src, count, dst_step, src_step);
    default:
      for (i64 i = 0; i < count; ++i) memcpy(dst + i * dst_step, src + i * src_step, size_t(bytes));
  }
}

void copy_loops(char *dst, const char *src, i64 bytes, const Loop *loops, int rank) {
  if (rank == 0) {
    memcpy(dst, src, size_t(bytes));
  } else if (rank == 1) {
    copy_blocks(dst, src, bytes, loops[0].size, loops[0].dst, loops[0].src);
  } else {
    const Loop &outer = loops[rank - 1];
    for (i64 i = 0; i < outer.size; ++i) copy_loops(dst + i * outer.dst, src + i * outer.src, bytes, loops, rank - 1);
  }
}

i64 offset_of_element(const Access &a, i64 flat) {
  i64 offset = 0;
  for (int d = a.rank - 1; d >= 0; --d) {
    offset += (flat % a.sizes[d]) * a.strides[d];
    flat /= a.sizes[d];
  }
  return offset;
}

void copy_elements(const Access &dst, const Access &src);

// Copies through a dense buffer of zeros with the elements inside.
void copy_padded(const Access &dst, const Access &src) {
  Blocks blocks;
  char *const buffer = blocks.alloc<char>(src.count * src.element);
  memset(buffer, 0, size_t(src.count * src.element));
  Access inside = src;
  i64 stride = 1, offset = 0;
  inside.count = 1;
  for (int d = src.rank - 1; d >= 0; --d) {
    inside.strides[d] = stride;
    inside.count *= src.sizes[d];
    offset += src.padding[d] * stride;
    stride *= src.padding[d] + src.sizes[d] + src.padding[src.rank + d];
  }
  inside.first = buffer + offset * src.element;
  inside.padding = nullptr;
  Access elements = src;
  elements.count = inside.count;
  elements.padding = nullptr;
  copy_elements(inside, elements);
  copy_elements(dst, dense(buffer, src.count, src.element));
}

// Splits both sides into the same loops, innermost first. Returns their number; -1 if the two shapes share no loops (6 x 4 into
// 8 x 3).
int split(Side &to, Side &from, i64 element, Loop *loops) {
  int rank = 0, t = 0, f = 0;
  // If one side is a single run, the loops are those of the other side.
  if (to.is_run()) {
    for (i64 run = element; rank < from.rank; run *= from.size[rank++]) {
      loops[rank] = Loop{from.size[rank], run, from.step[rank] * element};
    }
    return rank;
  }
  if (from.is_run()) {
    for (i64 run = element; rank < to.rank; run *= to.size[rank++]) {
      loops[rank] = Loop{to.size[rank], to.step[rank] * element, run};
    }
    return rank;
  }
  while (t < to.rank && f < from.rank) {
    const i64 size = gcd(to.size[t], from.size[f]);
    if (size == 1 || (size != to.size[t] && size != from.size[f])) break;
    loops[rank++] = Loop{size, to.step[t] * element, from.step[f] * element};
    to.size[t] /= size;
    to.step[t] *= size;
    from.size[f] /= size;
    from.step[f] *= size;
    if (to.size[t] == 1) ++t;
    if (from.size[f] == 1) ++f;
  }
  return t < to.rank || f < from.rank ? -1 : rank;
}

void copy_elements(const Access &dst, const Access &src) {
  if (dst.count == 0) return;
  if (src.padding) return copy_padded(dst, src);
  Side to(dst), from(src);
  Loop loops[2 * kMaxRank + 2];
  const int rank = split(to, from, dst.element, loops);
  if (rank < 0) {
    for (i64 i = 0; i < dst.count; ++i) {
      memcpy(dst.first + offset_of_element(dst, i) * dst.element, src.first + offset_of_element(src, i) * src.element,
             size_t(dst.element));
    }
    return;
  }
  // Innermost loops that are one run on both sides become the block.
  i64 bytes = dst.element;
  int inner = 0;
  while (inner < rank && loops[inner].dst == bytes && loops[inner].src == bytes) bytes *= loops[inner++].size;
  copy_loops(dst.first, src.first, bytes, loops + inner, rank - inner);
}

}  // namespace

// If a block is a run, or rows of one length with a constant step, each step of the side must move along rows or from row to
// row, and never beyond the end of a row.
bool read_from(const Access &block, const char *buffer, Access &side) {
  const Side from(block);
  if (from.rank > 2 || block.padding) return false;
  const i64 width = from.rank > 0 ? from.size[0] : 1, along = from.rank > 0 ? from.step[0] : 1;
  const i64 down = from.rank > 1 ? from.step[1] : 0;
  const i64 first = (side.first - buffer) / side.element;
  i64 column = first % width;
  Access found = side;
  for (int d = 0; d < side.rank; ++d) {
    const i64 step = side.strides[d], last = side.sizes[d] - 1;
    if (step % width == 0) {
      found.strides[d] = step / width * down;
    } else {
      if (step < 0) return false;
      found.strides[d] = step * along;
      column += step * last;
    }
  }
  if (column >= width) return false;
  found.first = block.first + (first / width * down + first % width * along) * block.element;
  found.low = block.low;
  found.high = block.high;
  found.stays = block.stays;
  side = found;
  return true;
}

void copy(Site site, const Access &dst, const Access &src) {
  if (kChecks) ++moves;
  if (dst.count != src.count || dst.element != src.element) {
    fail_as(Failure::kMismatch, site,
            "the two sides differ: the source gives %lld elements of %d bytes, the destination takes %lld of %d bytes",
            (long long)src.count, src.element, (long long)dst.count, dst.element);
  }
#if VNPU_CHECKS
  check_readable(site, src);
  check_destination(site, dst);
  const bool is_unwritten = copies_unwritten(site, dst, src);
#endif
  copy_elements(dst, src);
#if VNPU_CHECKS
  if (is_unwritten) copy_elements(flags_of(dst, true), flags_of(src, false));
  else mark(dst);
#endif
}

}  // namespace vnpu
