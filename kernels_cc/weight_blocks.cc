// Quantised weights in blocks of 32 rows by 256 columns: a matrix-vector product, and the blocks' weights as bf16.
//
// The layout of a block is that of kernel_builder/weight_blocks.py: scales in bf16 (8 groups of 32 columns, 32 rows), in 4 bits
// minima of the same shape, and codes column by column in two planes of 16 rows. A weight is bf16(scale * code + minimum): the
// product is exact, the sum is rounded to f32 and then to bf16. Weights are multiplied as mv.cc multiplies those of bf16, in
// the same order, so results have the same bits. Vectors hold 16 rows of a column, as the codes lie.
//
// A program that needs two variants builds this file twice and renames all symbols, for example
// -DWEIGHT_BITS=8 -DUNPACKED_BLOCKS=2 -Dmatvec_blocks_f32=matvec_q8_f32 ...

#include <cstdint>

#include <aie_api/aie.hpp>

// Bits of a code: 4, unsigned with minima, or 8, signed without.
#ifndef WEIGHT_BITS
#define WEIGHT_BITS 4
#endif
// Blocks that unpack_blocks_bf16 takes, one below the other and side by side, and groups of columns that it unpacks.
#ifndef UNPACKED_BLOCKS
#define UNPACKED_BLOCKS 1
#endif
#ifndef UNPACKED_ACROSS
#define UNPACKED_ACROSS 1
#endif
#ifndef UNPACKED_GROUPS
#define UNPACKED_GROUPS 2
#endif

namespace {

constexpr unsigned rows = 32, columns = 256, group_columns = 32, plane_rows = 16, planes = 2;
constexpr unsigned lanes = 64;  // partial sums of a row, as in mv.cc
constexpr bool has_minima = WEIGHT_BITS == 4;
constexpr unsigned minima_at = columns / group_columns * rows * 2;
constexpr unsigned codes_at = (has_minima ? 2 : 1) * minima_at;
constexpr unsigned column_bytes = plane_rows * WEIGHT_BITS / 8;  // of a plane
constexpr unsigned plane_bytes = columns * column_bytes;
constexpr unsigned block_bytes = codes_at + planes * plane_bytes;
constexpr unsigned at_once = 8;  // columns
constexpr unsigned side = 8, eight_rows = UNPACKED_GROUPS * group_columns * side;  // of a matrix that is unpacked

using Rows = aie::vector<bfloat16, plane_rows>;
using Sums = aie::accum<accfloat, plane_rows>;

// Scales or minima of 16 rows.
inline Rows load_rows(const uint8_t* at) { return aie::load_v<2 * plane_rows>(at).cast_to<bfloat16>(); }

// What 16 rows of a group of columns have in common.
struct Group {
  Rows scales;
  Sums minima;

  Group(const uint8_t* block, unsigned plane, unsigned group) {
    const uint8_t* const at = block + (group * rows + plane * plane_rows) * 2;
    scales = load_rows(at);
    if constexpr (has_minima) minima = Sums(load_rows(at + minima_at));
  }

  Rows weights(const Rows& codes) const {
    if constexpr (has_minima) return aie::mac(minima, codes, scales).to_vector<bfloat16>();
    else return aie::mul(codes, scales).to_vector<bfloat16>();
  }
};

// Codes of 8 columns.
struct Codes {
#if WEIGHT_BITS == 4
  aie::vector<uint8, at_once * plane_rows> all;
  explicit Codes(const uint8_t* at) : all(aie::unpack(aie::load_v<at_once * column_bytes>(at).cast_to<uint4>())) {}
#else
  aie::vector<int8, at_once * plane_rows> all;
  explicit Codes(const uint8_t* at) : all(aie::load_v<at_once * column_bytes>(at).cast_to<int8>()) {}
#endif
  Rows column(unsigned i) const { return aie::to_float<bfloat16>(all.extract<plane_rows>(i), 0); }
};

// On a CPU there may be faster ways to the same bits (kernels_cc/README.md); then sums have their rows in another order.
struct Of {
  using Api = Rows;
};
template <typename On>
concept HasBlocks = requires { typename On::Api::template weight_blocks<WEIGHT_BITS>; };

template <typename On>
bool multiplied([[maybe_unused]] uint32_t first, [[maybe_unused]] uint32_t k, [[maybe_unused]] const uint8_t* weights,
                [[maybe_unused]] const bfloat16* x, [[maybe_unused]] float* sums) {
  if constexpr (HasBlocks<On>) return On::Api::template weight_blocks<WEIGHT_BITS>::multiply(first, k, weights, x, sums);
  else return false;
}
template <typename On>
bool unpacked([[maybe_unused]] unsigned first, [[maybe_unused]] unsigned count, [[maybe_unused]] const uint8_t* block,
              [[maybe_unused]] bfloat16* to) {
  if constexpr (HasBlocks<On>) return On::Api::template weight_blocks<WEIGHT_BITS>::unpack(first, count, block, eight_rows, to);
  else return false;
}
// The place of a partial sum.
template <typename On>
constexpr unsigned place(unsigned row, unsigned lane) {
  if constexpr (HasBlocks<On>) return On::Api::template weight_blocks<WEIGHT_BITS>::place(row, lane);
  else return (row / plane_rows * lanes + lane) * plane_rows + row % plane_rows;
}

// Partial sums of 16 rows.
template <typename On>
Sums load_sums(const float* sums, unsigned plane, unsigned lane) {
  if constexpr (HasBlocks<On>) {
    aie::vector<float, plane_rows> found;
    for (unsigned row = 0; row < plane_rows; ++row) found.set(sums[place<On>(plane * plane_rows + row, lane)], row);
    return Sums(found);
  } else {
    return Sums(aie::load_v<plane_rows>(sums + place<On>(plane * plane_rows, lane)));
  }
}
template <typename On>
void store_sums(float* sums, unsigned plane, unsigned lane, const Sums& values) {
  const aie::vector<float, plane_rows> all = values.to_vector<float>();
  if constexpr (HasBlocks<On>)
    for (unsigned row = 0; row < plane_rows; ++row) sums[place<On>(plane * plane_rows + row, lane)] = all.get(row);
  else aie::store_v(sums + place<On>(plane * plane_rows, lane), all);
}

// y = the sums of 32 rows.
template <typename On>
void add_up(float* sums, float* y) {
  if constexpr (HasBlocks<On>) {
    On::Api::template weight_blocks<WEIGHT_BITS>::add_up(sums, y);
  } else {
    for (unsigned plane = 0; plane < planes; ++plane) {
      for (unsigned half = lanes / 2; half > 0; half /= 2)
        for (unsigned i = 0; i < half; ++i)
          store_sums<On>(sums, plane, i, aie::add(load_sums<On>(sums, plane, i), load_sums<On>(sums, plane, half + i)));
      aie::store_v(y + plane * plane_rows, load_sums<On>(sums, plane, 0).template to_vector<float>());
    }
  }
}

// Some columns of a block, from `first` on.
void unpack_columns(const uint8_t* __restrict block, unsigned first, unsigned count, bfloat16* __restrict to) {
  if (unpacked<Of>(first, count, block, to)) return;
  for (unsigned plane = 0; plane < planes; ++plane, to += 2 * eight_rows) {
    for (unsigned column = 0; column < count; column += at_once) {
      const unsigned from = first + column;
      const Group of_rows(block, plane, from / group_columns);
      const Codes codes(block + codes_at + plane * plane_bytes + from * column_bytes);
      for (unsigned c = 0; c < at_once; ++c) {
        const Rows column_weights = of_rows.weights(codes.column(c));
        aie::store_v(to + (column + c) * side, column_weights.extract<side>(0));
        aie::store_v(to + eight_rows + (column + c) * side, column_weights.extract<side>(1));
      }
    }
  }
}

}  // namespace

extern "C" {

// sums[i][row] += w[row][j] * x[j] for every column j, i = j % 64, at place(). blocks: side by side, of which the first begins with
// column `first` of k; x: k bf16; sums: 32 x 64 f32, which column 0 clears. Columns from k on are not multiplied. k is a
// multiple of 64.
// overwrites: sums if first == 0
void matvec_blocks_f32(uint32_t blocks, uint32_t first, uint32_t k, const uint8_t* __restrict weights,
                       const bfloat16* __restrict x, float* __restrict sums) {
  aie::set_rounding(aie::rounding_mode::conv_even);
  for (uint32_t i = 0; i < blocks; ++i, first += columns, weights += block_bytes) {
    const uint32_t end = k - first < columns ? k - first : columns;
    if (multiplied<Of>(first, k, weights, x, sums)) continue;
    for (unsigned plane = 0; plane < planes; ++plane) {
      for (unsigned lane = 0; lane < lanes; lane += at_once) {
        Sums partial[at_once];
        for (unsigned c = 0; c < at_once; ++c) {
          partial[c] = first ? load_sums<Of>(sums, plane, lane + c) : aie::zeros<accfloat, plane_rows>();
        }
        for (uint32_t column = lane; column < end; column += lanes) {
          const Group group(weights, plane, column / group_columns);
          const Codes codes(weights + codes_at + plane * plane_bytes + column * column_bytes);
          for (unsigned c = 0; c < at_once; ++c) {
            partial[c] = aie::mac(partial[c], group.weights(codes.column(c)), x[first + column + c]);
          }
        }
        for (unsigned c = 0; c < at_once; ++c) store_sums<Of>(sums, plane, lane + c, partial[c]);
      }
    }
  }
}

// y[row] = the 64 sums of each of 32 rows added up, in the order in which aie::reduce_add adds those of mv.cc, and rounded.
// overwrites: y
void matvec_block_rows_bf16(float* __restrict sums, bfloat16* __restrict y) {
  aie::set_rounding(aie::rounding_mode::conv_even);
  alignas(64) float totals[rows];
  add_up<Of>(sums, totals);
  for (unsigned row = 0; row < rows; row += plane_rows) {
    aie::store_v(y + row, Sums(aie::load_v<plane_rows>(totals + row)).to_vector<bfloat16>());
  }
}

// The weights of UNPACKED_GROUPS groups of columns, from column `first` on, of UNPACKED_BLOCKS rows of UNPACKED_ACROSS blocks:
// `to` gets blocks (n 8, k 8) of rows and columns of the matrix, each (k 8, n 8), as the matrix unit multiplies by it.
void unpack_blocks_bf16(uint32_t first, const uint8_t* __restrict weights, bfloat16* __restrict to) {
  aie::set_rounding(aie::rounding_mode::conv_even);
  constexpr unsigned count = UNPACKED_GROUPS * group_columns;
  for (unsigned row = 0; row < UNPACKED_BLOCKS; ++row, weights += UNPACKED_ACROSS * block_bytes, to += 4 * eight_rows) {
    for (unsigned column = 0, run; column < count; column += run) {
      const unsigned in_block = (first + column) % columns;
      run = columns - in_block < count - column ? columns - in_block : count - column;
      unpack_columns(weights + (first + column) / columns * block_bytes, in_block, run, to + column * side);
    }
  }
}
}

#if defined(AIE_HOST_WEIGHT_PAIRS)
namespace {

// The weights of a group of columns by pairs, where the CPU's own way is none for this block.
void unpack_pairs_slowly(const uint8_t* block, unsigned first, uint32_t* to) {
  alignas(64) bfloat16 blocks[rows / side * eight_rows];
  unpack_columns(block, first, group_columns, blocks);
  for (unsigned column = 0; column < group_columns; ++column)
    for (unsigned row = 0; row < rows; ++row) {
      const bfloat16 weight = blocks[row / side * eight_rows + column * side + row % side];
      const uint32_t bits = __builtin_bit_cast(uint16_t, weight);
      if constexpr (vnpu::MadePairs::kAreWide) to[column * rows + row] = bits << 16;
      else if (column % 2) to[column / 2 * rows + row] |= bits << 16;
      else to[column / 2 * rows + row] = bits;
    }
}

template <typename On>
using BlocksOf = On::Api::template weight_blocks<WEIGHT_BITS>;

// A group of columns: its block, and the first of its columns there.
struct GroupPlace {
  const uint8_t* block;
  unsigned first;

  GroupPlace(int32_t from, const uint8_t* weights, int64_t first)
      : block(weights + unsigned(from + first) / columns * block_bytes), first(unsigned(from + first) % columns) {}
};

// Of the weights of unpack_blocks_bf16 those of a group of columns of 32 rows, by pairs of columns: each a vector of all rows.
void unpack_group_pairs(int32_t from, const uint8_t* weights, int64_t first, uint32_t* to) {
  aie::set_rounding(aie::rounding_mode::conv_even);
  const GroupPlace group(from, weights, first);
  if (!BlocksOf<Of>::unpack_pairs(group.first, group.block, to)) unpack_pairs_slowly(group.block, group.first, to);
}

#if defined(AIE_HOST_WEIGHT_SUMS)
// The same, and sums += the products of eight rows of a, pair by pair, by a group that was unpacked before.
void unpack_group_pairs_and_add(int32_t from, const uint8_t* weights, int64_t first, uint32_t* to, const uint32_t* a,
                                const uint32_t* made, float* sums) {
  aie::set_rounding(aie::rounding_mode::conv_even);
  const GroupPlace group(from, weights, first);
  if (BlocksOf<Of>::unpack_pairs_and_add(group.first, group.block, to, a, made, sums)) return;
  unpack_pairs_slowly(group.block, group.first, to);
  BlocksOf<Of>::add_pairs(a, made, sums);
}
constexpr vnpu::MadePairs::MakeAndAdd make_and_add = &unpack_group_pairs_and_add;
#else
constexpr vnpu::MadePairs::MakeAndAdd make_and_add = nullptr;
#endif

// What a CPU multiplies few rows by (vnpu/made.h).
const vnpu::MadePairs by_pairs(&unpack_blocks_bf16, UNPACKED_GROUPS* group_columns, UNPACKED_BLOCKS, &unpack_group_pairs,
                               make_and_add);

}  // namespace
#endif
