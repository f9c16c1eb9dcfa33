// Tile primitives of FlashAttention: what one core does with a tile of Q rows and one tile of K and V rows.
//
// Layout. A tile of R rows and C columns is kept as panels of 8 columns: element (r, c) lies at
// (c / 8) * R * 8 + r * 8 + c % 8, so that every 8 x 8 block is 64 elements in a row. The DMA arranges Q, K and V so.
//
// Softmax in base 2. With t = score * scale * log2(e), a tile of Q rows carries for each row the running maximum m, an
// integer near the largest t so far, the running sum l of 2^(t - m), and the accumulator of 2^(t - m) V. As m is an
// integer, every rescaling factor is a power of two and costs no accuracy. (A larger t than m is possible by one half;
// then 2^(t - m) is at most 1.42.) A row that has seen no column has m = empty_max, l = 0 and a zero accumulator;
// merging it into another, or another into it, changes nothing, exactly.
//
// Three kernels use this file. FlashAttention (`flash_attention.py`) has one query head in a tile, and its rows are positions.
// CachedAttention (`cached_attention.py`) has ATTN_HEADS query heads of one KV head in a tile: row p * ATTN_HEADS + h is head h
// at position p. A mask says which keys a position attends to: one bit per key, key 0 lowest, in words of 32. BlockAttention
// (`block_attention.py`) has the same rows, a bf16 mask that is added to the scores, and ATTN_OWN keys that come last.

#include <cstdint>

#include <aie_api/aie.hpp>

#ifndef ATTN_Q_ROWS
#define ATTN_Q_ROWS 32
#endif
#ifndef ATTN_KV_ROWS
#define ATTN_KV_ROWS 64
#endif
#ifndef ATTN_HEAD_DIM
#define ATTN_HEAD_DIM 64
#endif

namespace {

constexpr unsigned q_rows = ATTN_Q_ROWS;
constexpr unsigned kv_rows = ATTN_KV_ROWS;
constexpr unsigned head_dim = ATTN_HEAD_DIM;
static_assert(q_rows % 8 == 0, "ATTN_Q_ROWS must be a multiple of 8, the rows of a matrix block");
static_assert(kv_rows % 8 == 0, "ATTN_KV_ROWS must be a multiple of 8, the columns of a matrix block");
static_assert(head_dim % 8 == 0, "ATTN_HEAD_DIM must be a multiple of 8, the columns of a matrix block");

constexpr float empty_max = -1.0e30f;
constexpr float masked_score = -3.0e38f;
constexpr float min_sum = 1.0e-6f;  // below any l but 0: the largest weight of a row is at least 2^-0.5

// 1 / sqrt(head_dim) by Newton's steps, as <cmath> is not constexpr.
constexpr float inverse_sqrt(float x) {
  float y = 1.0f / x;
  for (int i = 0; i < 40; ++i) y = y * (1.5f - 0.5f * x * y * y);
  return y;
}
constexpr float log2e = 1.44269504f;
#ifdef ATTN_SCALE_BITS  // the bits of a float: macros are whole numbers
constexpr float score_scale = __builtin_bit_cast(float, unsigned(ATTN_SCALE_BITS)) * log2e;
#else
constexpr float score_scale = inverse_sqrt(float(head_dim)) * log2e;
#endif

#ifdef ATTN_HEADS
constexpr unsigned heads = ATTN_HEADS;
constexpr unsigned positions = q_rows / heads;
static_assert(q_rows % heads == 0, "ATTN_Q_ROWS must be a multiple of ATTN_HEADS, the rows of a position");
static_assert(kv_rows % 32 == 0, "ATTN_KV_ROWS must be a multiple of 32, the keys of a word of the mask");
#endif

using Block = aie::mmul<8, 8, 8, bfloat16, bfloat16, accfloat>;
using Block64 = aie::vector<bfloat16, 64>;
constexpr unsigned block = 64;
// Blocks of rows that share one block of K or V: as many as there are accumulators (the core has 5 of 64 lanes).
constexpr unsigned row_blocks = q_rows % 32 == 0 ? 4 : q_rows % 16 == 0 ? 2 : 1;

using Rows4 = aie::vector<float, 32>;  // 4 rows of a panel
using Stat = aie::vector<float, 8>;  // one value per row, 8 rows

// Calls f(0), ..., f(N - 1), always unrolled: the compiler must know the index into an array of registers, or it puts the array
// in memory. Four blocks exceed a core's whole stack.
template <unsigned N, typename F>
[[gnu::always_inline]] inline void repeat(const F& f) {
  if constexpr (N > 0) {
    repeat<N - 1>(f);
    f(N - 1);
  }
}
#define ALWAYS_INLINE __attribute__((always_inline))

inline Block64 load_block(const bfloat16* panel, unsigned row_block) { return aie::load_v<block>(panel + row_block * block); }

// The value of each of 4 rows, repeated in the 8 lanes of its row.
inline Rows4 spread(const float* value) {
  return aie::concat(aie::broadcast<float, 8>(value[0]), aie::broadcast<float, 8>(value[1]), aie::broadcast<float, 8>(value[2]),
                     aie::broadcast<float, 8>(value[3]));
}

inline Rows4 product(const Rows4& a, const Rows4& b) { return aie::mul(a, b).to_vector<float>(); }

// The integer nearest to each lane: adding 1.5 * 2^23 leaves no bits for a fraction. Lanes of 2^23 and more in magnitude have
// no fraction anyway.
inline Stat nearest_integer(const Stat& v) {
  constexpr float magic = 12582912.0f;
  return aie::sub(aie::add(v, magic), magic);
}

inline Stat power_of_two(const Stat& exponent) {
  return aie::accum<accfloat, 8>(aie::exp2<bfloat16>(exponent)).to_vector<float>();
}

// Reduces the 8 lanes of each of 4 rows to one, by halves, all rows at once.
template <typename F>
[[gnu::always_inline]] inline aie::vector<float, 4> folded(const Rows4& rows, const F& fold) {
  const aie::vector<float, 16> four = fold(aie::filter_even(rows, 4), aie::filter_odd(rows, 4));
  const Stat two = fold(aie::filter_even(four, 2), aie::filter_odd(four, 2));
  return fold(aie::filter_even(two, 1), aie::filter_odd(two, 1));
}

// The largest score of the tile in each row.
inline void row_maxima(const float* __restrict scores, float* __restrict maxima) {
  for (unsigned row = 0; row < q_rows; row += 4) {
    Rows4 top = aie::broadcast<float, 32>(masked_score);
    for (unsigned panel = 0; panel < kv_rows / 8; ++panel)
      top = aie::max(top, aie::load_v<32>(scores + (panel * q_rows + row) * 8));
    const auto larger = [](const auto& a, const auto& b) ALWAYS_INLINE { return aie::max(a, b); };
    aie::store_v(maxima + row, folded(top, larger));
  }
}

#if defined(ATTN_HEADS) && !defined(ATTN_OWN)
constexpr unsigned mask_words = kv_rows / 32;

// The keys that any position attends to, in words of 32; all bits if it is all keys.
inline void seen_by_any(const int32_t* __restrict mask, uint32_t* __restrict seen) {
  for (unsigned word = 0; word < mask_words; ++word) {
    seen[word] = 0;
    for (unsigned p = 0; p < positions; ++p) seen[word] |= uint32_t(mask[p * mask_words + word]);
  }
}
inline bool is_any(const uint32_t* seen) {
  uint32_t any = 0;
  for (unsigned word = 0; word < mask_words; ++word) any |= seen[word];
  return any != 0;
}
template <typename Word>
inline bool is_all(const Word* seen) {
  uint32_t all = ~0u;
  for (unsigned word = 0; word < mask_words; ++word) all &= uint32_t(seen[word]);
  return all == ~0u;
}
// The bits of 8 keys of a position.
inline uint32_t eight_of(const int32_t* words, unsigned panel) {
  return (uint32_t(words[panel / 4]) >> (panel % 4 * 8)) & 0xffu;
}

// Scores of keys that their position does not attend to become the minimum. Mostly a position attends to all of them.
inline void hide(float* __restrict scores, const int32_t* __restrict mask) {
  const aie::vector<float, 8> hidden = aie::broadcast<float, 8>(masked_score);
  for (unsigned p = 0; p < positions; ++p) {
    const int32_t* const words = mask + p * mask_words;
    if (is_all(words)) continue;
    for (unsigned panel = 0; panel < kv_rows / 8; ++panel) {
      const uint32_t bits = eight_of(words, panel);
      if (bits == 0xffu) continue;
      for (unsigned row = p * heads; row < (p + 1) * heads; ++row) {
        float* at = scores + (panel * q_rows + row) * 8;
        aie::store_v(at, aie::select(hidden, aie::load_v<8>(at), aie::mask<8>::from_uint32(bits)));
      }
    }
  }
}
#endif

// Multiplies every row of an accumulator by its own factor. Not inlined at its three calls: a core computes a product of two
// floats from nine of bf16, and its program memory is 16 KiB.
[[gnu::noinline]] void scale_rows(float* __restrict acc, const float* __restrict factor) {
  for (unsigned row = 0; row < q_rows; row += 4) {
    const Rows4 f = spread(factor + row);
    for (unsigned panel = 0; panel < head_dim / 8; ++panel) {
      float* at = acc + (panel * q_rows + row) * 8;
      aie::store_v(at, product(aie::load_v<32>(at), f));
    }
  }
}

// Whether the AIE API multiplies whole panels with the bits of Block. The virtual NPU's API does if its CPU multiplies several
// blocks at once. The device's does not.
struct Own {
  using Api = Block;
};
template <typename Of>
concept MultipliesPanels = requires(const bfloat16* in, const uint32_t* seen, float* out) {
  Of::Api::template multiply_panels<q_rows, kv_rows / 8, head_dim / 8, false, true>(in, in, seen, out);
};

// A block of V with zeros for the rows (keys) whose bit is not set, which no position attends to. Their weights are zero, but
// zero times an infinity or NaN in a stale row is NaN.
inline Block64 seen_rows(const Block64& v, uint32_t bits) {
  uint32_t lanes[2] = {0, 0};
  for (unsigned row = 0; row < 8; ++row) lanes[row / 4] |= (bits >> row & 1u) ? 0xffu << (row % 4 * 8) : 0u;
  return aie::select(aie::zeros<bfloat16, block>(), v, aie::mask<block>::from_uint32(lanes[0], lanes[1]));
}

// seen: one bit per row of v, in words of 32; null means all bits are set.
inline Block64 seen_block(const bfloat16* v, unsigned k, const uint32_t* seen) {
  const uint32_t bits = seen ? seen[k / 4] >> (k % 4 * 8) & 0xffu : 0xffu;
  const Block64 all = load_block(v, k);
  return bits == 0xffu ? all : seen_rows(all, bits);
}

// acc += p v for one panel of 8 columns of acc and v. Not inlined, for the same reason.
[[maybe_unused, gnu::noinline]] void add_panel(const bfloat16* __restrict p, const bfloat16* __restrict v, const uint32_t* seen,
                                               float* __restrict acc) {
  for (unsigned row = 0; row < q_rows / 8; row += row_blocks) {
    float* at = acc + row * block;
    Block c[row_blocks];
    repeat<row_blocks>([&](unsigned i) ALWAYS_INLINE { c[i] = Block(aie::load_v<block>(at + i * block)); });
    for (unsigned k = 0; k < kv_rows / 8; ++k) {
      const Block64 b = seen_block(v, k, seen);
      repeat<row_blocks>([&](unsigned i) ALWAYS_INLINE { c[i].mac(load_block(p + k * q_rows * 8, row + i), b); });
    }
    repeat<row_blocks>([&](unsigned i) ALWAYS_INLINE { aie::store_v(at + i * block, c[i].to_vector<float>()); });
  }
}

// acc += p v. v: kv_rows x head_dim bf16 in panels.
template <typename Of = Own>
[[gnu::always_inline]] inline void add_values(const bfloat16* __restrict p, const bfloat16* __restrict v, const uint32_t* seen,
                                              float* __restrict acc) {
  if constexpr (MultipliesPanels<Of>) {
    Of::Api::template multiply_panels<q_rows, kv_rows / 8, head_dim / 8, false, true>(p, v, seen, acc);
  } else {
    for (unsigned column = 0; column < head_dim / 8; ++column)
      add_panel(p, v + column * kv_rows * 8, seen, acc + column * q_rows * 8);
  }
}

// scores = q k^T for row_blocks blocks of rows and 8 keys.
[[maybe_unused]] inline void score_block(const bfloat16* __restrict q, const bfloat16* __restrict k, unsigned row,
                                         unsigned column, float* __restrict scores) {
  Block c[row_blocks];
  for (unsigned d = 0; d < head_dim / 8; ++d) {
    const Block64 b = aie::transpose(load_block(k + d * kv_rows * 8, column), 8, 8);
    repeat<row_blocks>([&](unsigned i) ALWAYS_INLINE { c[i].mac(load_block(q + d * q_rows * 8, row + i), b); });
  }
  float* at = scores + column * q_rows * 8 + row * block;
  repeat<row_blocks>([&](unsigned i) ALWAYS_INLINE { aie::store_v(at + i * block, c[i].to_vector<float>()); });
}

// scores = q k^T in f32.
template <typename Of = Own>
[[gnu::always_inline]] inline void multiply_keys(const bfloat16* __restrict q, const bfloat16* __restrict k,
                                                 float* __restrict scores) {
  if constexpr (MultipliesPanels<Of>) {
    Of::Api::template multiply_panels<q_rows, head_dim / 8, kv_rows / 8, true, false>(q, k, nullptr, scores);
  } else {
    for (unsigned column = 0; column < kv_rows / 8; ++column)
      for (unsigned row = 0; row < q_rows / 8; row += row_blocks) score_block(q, k, row, column, scores);
  }
}

// p = 2^(t - m) in bf16, and the sum of each row of p, as rounded.
inline void exponentials(const float* __restrict scores, const float* __restrict m, bfloat16* __restrict p,
                         float* __restrict sums) {
  const Rows4 scale = aie::broadcast<float, 32>(score_scale);
  for (unsigned row = 0; row < q_rows; row += 4) {
    const Rows4 shift = spread(m + row);
    aie::accum<accfloat, 32> sum = aie::zeros<accfloat, 32>();
    for (unsigned panel = 0; panel < kv_rows / 8; ++panel) {
      const unsigned at = (panel * q_rows + row) * 8;
      const Rows4 t = aie::sub(product(aie::load_v<32>(scores + at), scale), shift);
      const aie::vector<bfloat16, 32> weight = aie::exp2<bfloat16>(t);
      sum = aie::add(sum, weight);
      aie::store_v(p + at, weight);
    }
    const auto both = [](const auto& a, const auto& b) ALWAYS_INLINE { return aie::add(a, b); };
    aie::store_v(sums + row, folded(sum.to_vector<float>(), both));
  }
}

}  // namespace

extern "C" {

// Clears the state of a tile of Q rows before its first K row. acc: q_rows x head_dim f32 in panels. stats: 4 q_rows f32: m, l
// and two rows of scratch, which are cleared because they are sent with the rest.
void attn_init(float* __restrict acc, float* __restrict stats) {
  for (unsigned i = 0; i < q_rows * head_dim; i += 32) aie::store_v(acc + i, aie::zeros<float, 32>());
  for (unsigned i = 0; i < q_rows; i += 8) aie::store_v(stats + i, aie::broadcast<float, 8>(empty_max));
  for (unsigned i = q_rows; i < 4 * q_rows; i += 8) aie::store_v(stats + i, aie::zeros<float, 8>());
}

// scores = q k^T in f32. q: q_rows x head_dim, k: kv_rows x head_dim bf16 in panels; scores: q_rows x kv_rows f32 in
// panels.
void attn_scores(const bfloat16* __restrict q, const bfloat16* __restrict k, float* __restrict scores) {
  aie::set_rounding(aie::rounding_mode::conv_even);
  multiply_keys(q, k, scores);
}

#ifndef ATTN_HEADS
// Hides the scores of columns after their row's position: column first_k + j after row first_q + i.
void attn_causal_mask(float* __restrict scores, int32_t first_q, int32_t first_k) {
  if (first_k + int32_t(kv_rows) - 1 <= first_q) return;
  const aie::vector<float, 8> hidden = aie::broadcast<float, 8>(masked_score);
  for (unsigned row = 0; row < q_rows; ++row) {
    const int32_t seen = first_q + int32_t(row) - first_k + 1;
    for (unsigned panel = 0; panel < kv_rows / 8; ++panel) {
      const int32_t keep = seen - int32_t(panel * 8);
      if (keep >= 8) continue;
      float* at = scores + (panel * q_rows + row) * 8;
      const uint32_t bits = keep <= 0 ? 0xffu : (0xffu << keep) & 0xffu;
      aie::store_v(at, aie::select(aie::load_v<8>(at), hidden, aie::mask<8>::from_uint32(bits)));
    }
  }
}
#endif

// One step of the online softmax: scores become weights p (q_rows x kv_rows bf16 in panels), m and l in stats are updated, and
// acc is rescaled to the new m.
void attn_softmax(const float* __restrict scores, bfloat16* __restrict p, float* __restrict stats, float* __restrict acc) {
  aie::set_rounding(aie::rounding_mode::conv_even);
  float* m = stats;
  float* l = stats + q_rows;
  float* tile = stats + 2 * q_rows;
  float* factor = stats + 3 * q_rows;
  row_maxima(scores, tile);
  for (unsigned i = 0; i < q_rows; i += 8) {
    const Stat old_max = aie::load_v<8>(m + i);
    const Stat top = aie::mul(aie::load_v<8>(tile + i), score_scale).to_vector<float>();
    const Stat new_max = aie::max(old_max, nearest_integer(top));
    const Stat f = power_of_two(aie::sub(old_max, new_max));
    aie::store_v(m + i, new_max);
    aie::store_v(factor + i, f);
    aie::store_v(l + i, aie::mul(aie::load_v<8>(l + i), f).to_vector<float>());
  }
  exponentials(scores, m, p, tile);
  for (unsigned i = 0; i < q_rows; i += 8) aie::store_v(l + i, aie::add(aie::load_v<8>(l + i), aie::load_v<8>(tile + i)));
  scale_rows(acc, factor);
}

// acc += p v. v: kv_rows x head_dim bf16 in panels.
void attn_values(const bfloat16* __restrict p, const bfloat16* __restrict v, float* __restrict acc) {
  aie::set_rounding(aie::rounding_mode::conv_even);
  add_values(p, v, nullptr, acc);
}

#ifdef ATTN_OWN
// The mask is in the units of scores after their scale; the scores here are before it.
inline void add_mask(float* __restrict scores, const bfloat16* __restrict mask) {
  constexpr float before_scale = log2e / score_scale;
  for (unsigned p = 0; p < positions; ++p)
    for (unsigned panel = 0; panel < kv_rows / 8; ++panel) {
      const aie::accum<accfloat, 8> given(aie::load_v<8>(mask + p * kv_rows + panel * 8));
      const Stat added = aie::mul(given.to_vector<float>(), before_scale).to_vector<float>();
      for (unsigned row = p * heads; row < (p + 1) * heads; ++row) {
        float* at = scores + (panel * q_rows + row) * 8;
        aie::store_v(at, aie::add(aie::load_v<8>(at), added));
      }
    }
}

// scores = q k^T with the mask of this tile added. masks: those of several tiles, positions x kv_rows each.
void attn_added_scores(const bfloat16* __restrict q, const bfloat16* __restrict k, const bfloat16* __restrict masks,
                       int32_t tile, float* __restrict scores) {
  attn_scores(q, k, scores);
  add_mask(scores, masks + unsigned(tile) * positions * kv_rows);
}

// The same for the keys of the rows themselves: the first ATTN_OWN of the tile, with the first mask. The rest of the tile is
// left over from earlier keys.
void attn_own_scores(const bfloat16* __restrict q, const bfloat16* __restrict k, const bfloat16* __restrict masks,
                     float* __restrict scores) {
  attn_scores(q, k, scores);
  add_mask(scores, masks);
  const Stat hidden = aie::broadcast<float, 8>(masked_score);
  for (unsigned panel = ATTN_OWN / 8; panel < kv_rows / 8; ++panel) {
    const uint32_t bits = panel == ATTN_OWN / 8 ? (1u << ATTN_OWN % 8) - 1 : 0;
    for (unsigned row = 0; row < q_rows; ++row) {
      float* at = scores + (panel * q_rows + row) * 8;
      aie::store_v(at, aie::select(hidden, aie::load_v<8>(at), aie::mask<8>::from_uint32(bits)));
    }
  }
}
#elif defined(ATTN_HEADS)
// If no position attends to a key of the tile, the next two functions do nothing. masks: those of several tiles, of which
// `tile` is this one; positions x kv_rows / 32 words each.

// scores = q k^T, with the scores of masked keys hidden.
void attn_seen_scores(const bfloat16* __restrict q, const bfloat16* __restrict k, const int32_t* __restrict masks, int32_t tile,
                      float* __restrict scores) {
  const int32_t* mask = masks + unsigned(tile) * positions * mask_words;
  uint32_t seen[mask_words];
  seen_by_any(mask, seen);
  if (!is_any(seen)) return;
  attn_scores(q, k, scores);
  hide(scores, mask);
}

// The step of the online softmax, and acc += p v without the rows of v that no position attends to.
void attn_seen_values(const float* __restrict scores, const int32_t* __restrict masks, int32_t tile, bfloat16* __restrict p,
                      const bfloat16* __restrict v, float* __restrict stats, float* __restrict acc) {
  uint32_t seen[mask_words];
  seen_by_any(masks + unsigned(tile) * positions * mask_words, seen);
  if (!is_any(seen)) return;
  attn_softmax(scores, p, stats, acc);
  add_values(p, v, is_all(seen) ? nullptr : seen, acc);
}
#endif

// Merges the partial result of other K rows into (acc, stats). `other` is overwritten.
void attn_merge(float* __restrict other, const float* __restrict other_stats, float* __restrict acc, float* __restrict stats) {
  aie::set_rounding(aie::rounding_mode::conv_even);
  float* other_factor = stats + 2 * q_rows;
  float* factor = stats + 3 * q_rows;
  for (unsigned i = 0; i < q_rows; i += 8) {
    const Stat mine = aie::load_v<8>(stats + i), their_stats = aie::load_v<8>(other_stats + i);
    const Stat both = aie::max(mine, their_stats);
    const Stat f = power_of_two(aie::sub(mine, both)), g = power_of_two(aie::sub(their_stats, both));
    aie::accum<accfloat, 8> l = aie::mul(aie::load_v<8>(stats + q_rows + i), f);
    l = aie::mac(l, aie::load_v<8>(other_stats + q_rows + i), g);
    aie::store_v(stats + i, both);
    aie::store_v(stats + q_rows + i, l.to_vector<float>());
    aie::store_v(factor + i, f);
    aie::store_v(other_factor + i, g);
  }
  scale_rows(acc, factor);
  scale_rows(other, other_factor);
  for (unsigned i = 0; i < q_rows * head_dim; i += 32)
    aie::store_v(acc + i, aie::add(aie::load_v<32>(acc + i), aie::load_v<32>(other + i)));
}

// out = acc / l in bf16, in panels; a row that has seen no column gives zeros.
void attn_store(const float* __restrict acc, float* __restrict stats, bfloat16* __restrict out) {
  aie::set_rounding(aie::rounding_mode::conv_even);
  float* factor = stats + 3 * q_rows;
  for (unsigned i = 0; i < q_rows; i += 8)
    aie::store_v(factor + i, aie::inv(aie::max(aie::load_v<8>(stats + q_rows + i), min_sum)));
  for (unsigned row = 0; row < q_rows; row += 4) {
    const Rows4 f = spread(factor + row);
    for (unsigned panel = 0; panel < head_dim / 8; ++panel) {
      const unsigned at = (panel * q_rows + row) * 8;
      aie::store_v(out + at, aie::mul(aie::load_v<32>(acc + at), f).to_vector<bfloat16>());
    }
  }
}
}
