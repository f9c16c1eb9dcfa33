// Decode attention on the host: one query position against the KV cache, which is read in place.
//
// Scores, softmax and sums are float32, and the result is rounded to bf16 once. A position's score does not depend on its place
// in a tile. One thread computes a head's softmax, and an element's sum over the positions: so the number of threads, which
// share heads, positions and elements, changes no bit. The instruction set does: by the number of lanes that add up a score,
// and by its fused multiply-adds.
//
// A head must be whole pairs of vectors (vectors.h): at most 32 elements.

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#include "vectors.h"
#include "vnpu/prefetch.h"
#include "vnpu/team.h"

namespace {

constexpr int kTile = kLanes;  // dot products at a time: HEADS heads against kTile / HEADS positions

// Positions for one call; __init__.py has the same struct. New rows are stored at position .. position + rows to: 1, or at
// row_positions[0 .. rows - 1] if that is not null. The token attends to positions visible_start .. visible_stop - 1, or
// to visible[0 .. visible_stop - visible_start - 1], in this order, if that is not null, as for pages of a pool.
struct KVPosition {
  std::int64_t position, rows, visible_start, visible_stop;
  const std::int64_t *row_positions, *visible;
};

// One layer's part of a decoded token; __init__.py has the same struct.
struct Layer {
  const std::uint16_t* query;  // (heads * head_dim)
  const std::uint16_t *key_rows, *value_rows;  // (rows, kv_heads * head_dim): the new tokens' keys and values
  std::uint16_t *keys, *values;  // (kv_heads, capacity, head_dim)
  std::uint16_t* out;  // (heads * head_dim)
  std::int64_t heads, kv_heads, head_dim, capacity, threads;
  double scale;  // what scores are multiplied with
  const KVPosition* position;
};

// The rows of a state that each token reads, its own last; __init__.py has the same struct. -1: there is none.
struct StatePositions {
  std::int64_t tokens, reads;
  const std::int64_t* positions;  // (tokens, reads)
};

// One layer's state and new rows, or what is gathered of it; __init__.py has the same struct.
struct StateLayer {
  std::uint16_t* state;  // (capacity, width)
  std::uint16_t* rows;  // to store: (rows, width); gathered: (rows, reads, width)
  std::int64_t width, nbytes;  // nbytes: of `rows`
  const StatePositions* positions;
};

struct Job : Layer {
  std::int64_t group, first, positions;
  std::int64_t padded;  // positions, rounded up to whole tiles
  const std::int64_t* visible;
  float score_scale;

  explicit Job(const Layer& layer)
      : Layer(layer),
        group(heads / kv_heads),
        first(position->visible_start),
        positions(position->visible_stop - first),
        padded((positions + kTile - 1) / kTile * kTile),
        visible(position->visible),
        score_scale(float(scale)) {}
};

// Calls ASK(line) for each cache line of these elements.
template <auto ASK>
INLINE void each_line(const std::uint16_t* from, std::int64_t elements) {
  const char* const bytes = reinterpret_cast<const char*>(from);
  for (std::int64_t at = 0; at < elements * 2; at += 64) ASK(bytes + at);
}

// Rows of a head whose positions are contiguous. Width: a number, or a constant that the compiler knows.
template <class Width>
struct InARow {
  Width width;

  InARow(const Job&, Width width) : width(width) {}
  INLINE const std::uint16_t* operator()(const std::uint16_t* rows, std::int64_t at) const { return rows + at * width; }
  // `count` positions from `at` on are read now, `elements` of each row: prefetches what comes after them.
  INLINE void prefetch_ahead(const std::uint16_t* rows, std::int64_t at, std::int64_t count, std::int64_t elements) const {
    for (std::int64_t i = 0; i < count; ++i) each_line<vnpu::prefetch_ahead>(rows + (at + i) * width, elements);
  }
};

// Positions of the cache that `visible` lists.
template <class Width>
struct Scattered {
  Width width;
  std::int64_t last, early, soon;
  const std::int64_t* visible;

  Scattered(const Job& job, Width width)
      : width(width),
        last(job.positions - 1),
        early(vnpu::kFirstDistance / 2 / width),
        soon(vnpu::kSecondDistance / 2 / width),
        visible(job.visible) {}
  INLINE const std::uint16_t* operator()(const std::uint16_t* rows, std::int64_t at) const {
    return rows + visible[at] * width;
  }
  INLINE void prefetch_ahead(const std::uint16_t* rows, std::int64_t at, std::int64_t count, std::int64_t elements) const {
    for (std::int64_t i = at; i < at + count; ++i) {
      each_line<vnpu::prefetch_early>((*this)(rows, std::min(i + early, last)), elements);
      if (vnpu::kSecondDistance > 0) each_line<vnpu::prefetch_soon>((*this)(rows, std::min(i + soon, last)), elements);
    }
  }
};

// The dot products of HEADS heads with kTile / HEADS rows of keys: lane row * HEADS + head.
template <int HEADS, class Width>
INLINE Floats score_of_tile(const float* query, const std::uint16_t* const* rows, Width width) {
  constexpr int kRows = kTile / HEADS;
  Floats sums[kTile] = {};
  for (std::int64_t d = 0; d < width; d += kPair) {
    Floats even[kRows], odd[kRows];
#pragma GCC unroll 16
    for (int row = 0; row < kRows; ++row) {
      const Pair key(rows[row] + d);
      even[row] = key.even, odd[row] = key.odd;
    }
#pragma GCC unroll 2
    for (int half = 0; half < 2; ++half) {
#pragma GCC unroll 4
      for (int head = 0; head < HEADS; ++head) {
        const Floats query_lanes = in_register(load(query + head * width + d + half * kLanes));
#pragma GCC unroll 16
        for (int row = 0; row < kRows; ++row) {
          Floats& sum = sums[row * HEADS + head];
          sum = multiply_add(query_lanes, half ? odd[row] : even[row], sum);
        }
      }
    }
  }
  return sums_of(sums);
}

// Scores of HEADS heads at positions from .. to - 1, `from` a multiple of kTile: scores[position * HEADS + head]. Rows after
// the last repeat the last.
template <int HEADS, class Layout>
void score(const Job& job, Layout layout, const float* query, const std::uint16_t* keys, std::int64_t from, std::int64_t to,
           float* scores) {
  constexpr int kRows = kTile / HEADS;
  const std::int64_t last = job.positions - 1;
  const std::uint16_t* rows[kRows];
  for (std::int64_t at = from; at < to; at += kRows) {
    for (int row = 0; row < kRows; ++row) rows[row] = layout(keys, std::min(at + row, last));
    layout.prefetch_ahead(keys, at, kRows, layout.width);
    store(scores + at * HEADS, score_of_tile<HEADS>(query, rows, layout.width) * job.score_scale);
  }
}

// Softmax of HEADS heads without the division: replaces scores by weights, and writes their sums to totals.
template <int HEADS>
void soften(float* scores, std::int64_t positions, std::int64_t padded, float* totals) {
  std::fill(scores + positions * HEADS, scores + padded * HEADS, -std::numeric_limits<float>::infinity());
  Floats largest = load(scores);
  for (std::int64_t at = kLanes; at < padded * HEADS; at += kLanes) {
    const Floats next = load(scores + at);
    largest = next > largest ? next : largest;
  }
  for (int lane = HEADS; lane < kLanes; ++lane) largest[lane % HEADS] = std::max(largest[lane % HEADS], largest[lane]);
  for (int lane = HEADS; lane < kLanes; ++lane) largest[lane] = largest[lane % HEADS];
  Floats sums = {};
  for (std::int64_t at = 0; at < padded * HEADS; at += kLanes) {
    const Floats weights = exponential(load(scores + at) - largest);
    store(scores + at, weights);
    sums += weights;
  }
  for (int lane = HEADS; lane < kLanes; ++lane) sums[lane % HEADS] += sums[lane];
  for (int head = 0; head < HEADS; ++head) totals[head] = sums[head];
}

// Vectors of sums that fit in registers together with their addends, and positions after which the sums are stored. Eight sums
// would each wait for their last addition; meanwhile the CPU starts the next short run.
#if defined(__AVX512F__) || defined(__aarch64__)
constexpr int kSums = 16, kRun = 64;
#else
constexpr int kSums = 8, kRun = 8;
#endif

// Adds the weighted values of `count` positions from `at` on to the sums of HEADS heads, PAIRS * kPair elements each.
template <int HEADS, int PAIRS, class Layout, class Count>
INLINE void add_values(Layout layout, const float* weights, const std::uint16_t* values, std::int64_t at, Count count,
                       float* sums) {
  const auto place = [&](int i) { return sums + i % HEADS * layout.width + i / HEADS * kLanes; };
  Floats added[2 * PAIRS * HEADS];
#pragma GCC unroll 16
  for (int i = 0; i < 2 * PAIRS * HEADS; ++i) added[i] = load(place(i));
  for (int i = 0; i < count; ++i, ++at) {
    layout.prefetch_ahead(values, at, 1, PAIRS * kPair);
    const std::uint16_t* const row = layout(values, at);
#pragma GCC unroll 8
    for (int pair = 0; pair < PAIRS; ++pair) {
      const Pair value(row + pair * kPair);
#pragma GCC unroll 4
      for (int head = 0; head < HEADS; ++head) {
        const Floats weight = all(weights[at * HEADS + head]);
        Floats* const even = added + 2 * pair * HEADS + head;
        Floats* const odd = even + HEADS;
        *even = multiply_add(weight, value.even, *even);
        *odd = multiply_add(weight, value.odd, *odd);
      }
    }
  }
#pragma GCC unroll 16
  for (int i = 0; i < 2 * PAIRS * HEADS; ++i) store(place(i), added[i]);
}

// The same for elements from .. to - 1, as many pairs at a time as fit in registers.
template <int HEADS, int PAIRS = kSums / HEADS / 2, class Layout, class Count>
INLINE void add_run(Layout layout, const float* weights, const std::uint16_t* values, std::int64_t at, Count count,
                    std::int64_t from, std::int64_t to, float* sums) {
  for (; to - from >= PAIRS * kPair; from += PAIRS * kPair)
    add_values<HEADS, PAIRS>(layout, weights, values + from, at, count, sums + from);
  if constexpr (PAIRS > 1) add_run<HEADS, PAIRS / 2>(layout, weights, values, at, count, from, to, sums);
}

// Adds up the weighted values of HEADS heads: elements from .. to - 1. sums: HEADS * head_dim floats.
template <int HEADS, class Layout>
void mix(const Job& job, Layout layout, const float* weights, const float* totals, const std::uint16_t* values,
         std::int64_t from, std::int64_t to, float* sums, std::uint16_t* out) {
  for (int head = 0; head < HEADS; ++head) std::fill(sums + head * job.head_dim + from, sums + head * job.head_dim + to, 0.0f);
  std::int64_t at = 0;
  for (; job.positions - at >= kRun; at += kRun)
    add_run<HEADS>(layout, weights, values, at, std::integral_constant<int, kRun>(), from, to, sums);
  add_run<HEADS>(layout, weights, values, at, job.positions - at, from, to, sums);
  for (int head = 0; head < HEADS; ++head) {
    for (std::int64_t d = head * job.head_dim + from; d < head * job.head_dim + to; d += kPair) {
      for (int lane = 0; lane < kLanes; ++lane) {
        out[d + 2 * lane] = round_to_bf16(sums[d + lane] / totals[head]);
        out[d + 2 * lane + 1] = round_to_bf16(sums[d + kLanes + lane] / totals[head]);
      }
    }
  }
}

// Reorders the query's elements as Pair reorders those of a key.
void arrange(const std::uint16_t* query, std::int64_t count, float* arranged) {
  for (std::int64_t at = 0; at < count; at += kPair) {
    const Pair pair(query + at);
    store(arranged + at, pair.even);
    store(arranged + at + kLanes, pair.odd);
  }
}

// Calls f(HEADS, first) for groups of four, two or one query heads.
template <class F>
INLINE void in_passes(std::int64_t heads, F f) {
  std::int64_t head = 0;
  for (; heads - head >= 4; head += 4) f(std::integral_constant<int, 4>(), head);
  for (; heads - head >= 2; head += 2) f(std::integral_constant<int, 2>(), head);
  for (; head < heads; ++head) f(std::integral_constant<int, 1>(), head);
}

// The query heads that share a KV head, with buffers in a given memory.
class Group {
 public:
  static std::int64_t room(const Job& job) { return job.group * (job.padded + 2 * job.head_dim + 1); }

  Group(const Job& job, std::int64_t kv_head, float* room)
      : job_(job),
        first_row_((kv_head * job.capacity + job.first) * job.head_dim),
        first_element_(kv_head * job.group * job.head_dim),
        scores_(room),
        query_(scores_ + job.group * job.padded),
        sums_(query_ + job.group * job.head_dim),
        totals_(sums_ + job.group * job.head_dim) {}

  void begin() const { arrange(job_.query + first_element_, job_.group * job_.head_dim, query_); }

  void score(std::int64_t from, std::int64_t to) const {
    in_passes(job_.group, [&](auto count, std::int64_t head) {
      const float* const query = query_ + head * job_.head_dim;
      with_layout([&](auto layout) {
        ::score<count>(job_, layout, query, job_.keys + first_row_, from, to, scores_ + head * job_.padded);
      });
    });
  }
  void soften() const {
    if (!job_.visible)
      each_line<vnpu::prefetch_early>(job_.values + first_row_,
                                      std::min(vnpu::kFirstDistance / 2, job_.positions * job_.head_dim));
    in_passes(job_.group, [&](auto count, std::int64_t head) {
      ::soften<count>(scores_ + head * job_.padded, job_.positions, job_.padded, totals_ + head);
    });
  }
  void mix(std::int64_t from, std::int64_t to) const {
    in_passes(job_.group, [&](auto count, std::int64_t head) {
      const std::int64_t at = head * job_.head_dim;
      with_layout([&](auto layout) {
        ::mix<count>(job_, layout, scores_ + head * job_.padded, totals_ + head, job_.values + first_row_, from, to, sums_ + at,
                     job_.out + first_element_ + at);
      });
    });
  }

 private:
  // Calls f(layout), with the most common width as a constant for the compiler.
  template <class F>
  INLINE void with_layout(F f) const {
    if (job_.head_dim == 64) with_layout(f, std::integral_constant<std::int64_t, 64>());
    else with_layout(f, job_.head_dim);
  }
  template <class F, class Width>
  INLINE void with_layout(F f, Width width) const {
    if (job_.visible) f(Scattered<Width>(job_, width));
    else f(InARow<Width>(job_, width));
  }

  const Job& job_;
  const std::int64_t first_row_, first_element_;
  float *const scores_, *const query_, *const sums_, *const totals_;
};

// A buffer of floats of this thread; the next call replaces it.
float* own_room(std::int64_t floats) {
  thread_local std::vector<float> room;
  if (std::int64_t(room.size()) < floats) room.resize(floats);
  return room.data();
}

// Whole KV heads, taken one by one: a thread that starts late does fewer.
class ByHeads {
 public:
  explicit ByHeads(const Job& job) : job_(job) {}

  void work() {
    for (std::int64_t kv_head; (kv_head = next_++) < job_.kv_heads;) {
      const Group group(job_, kv_head, own_room(Group::room(job_)));
      group.begin();
      group.score(0, job_.positions);
      group.soften();
      group.mix(0, job_.head_dim);
    }
  }

 private:
  const Job& job_;
  std::atomic<std::int64_t> next_{0};
};

// Pieces of KV heads, if whole ones would leave threads idle: first scores, by positions, then sums, by elements. The thread
// that scores a head's last piece computes its softmax. Pieces are taken in order, so what a sum waits for is always running.
class ByPieces {
 public:
  ByPieces(const Job& job, std::int64_t threads)
      : job_(job),
        length_(piece_length(job, threads)),
        pieces_((job.positions + length_ - 1) / length_),
        ranges_(job.head_dim / kRange),
        room_(own_room(job.kv_heads * Group::room(job))),
        unscored_(job.kv_heads) {
    for (std::int64_t kv_head = 0; kv_head < job.kv_heads; ++kv_head) {
      group(kv_head).begin();
      unscored_[kv_head] = pieces_;
    }
  }

  void work() {
    const std::int64_t scores = job_.kv_heads * pieces_, all = scores + job_.kv_heads * ranges_;
    for (std::int64_t piece; (piece = next_++) < all;) {
      if (piece < scores) score(piece / pieces_, piece % pieces_ * length_);
      else mix((piece - scores) / ranges_, (piece - scores) % ranges_ * kRange);
    }
  }

 private:
  static constexpr std::int64_t kRange = 32;  // elements: a line of the cache
  static constexpr std::int64_t kBlock = 64;  // positions: whole tiles

  // Twice as many pieces as threads, each of whole blocks.
  static std::int64_t piece_length(const Job& job, std::int64_t threads) {
    const std::int64_t pieces = (2 * threads + job.kv_heads - 1) / job.kv_heads;
    const std::int64_t blocks = (job.positions + kBlock - 1) / kBlock;
    return (blocks + pieces - 1) / pieces * kBlock;
  }
  Group group(std::int64_t kv_head) const { return Group(job_, kv_head, room_ + kv_head * Group::room(job_)); }

  void score(std::int64_t kv_head, std::int64_t from) {
    group(kv_head).score(from, std::min(from + length_, job_.positions));
    if (unscored_[kv_head].fetch_sub(1) > 1) return;
    group(kv_head).soften();
    unscored_[kv_head].store(-1);
  }
  void mix(std::int64_t kv_head, std::int64_t from) const {
    while (unscored_[kv_head].load() >= 0) std::this_thread::yield();
    group(kv_head).mix(from, from + kRange);
  }

  const Job& job_;
  const std::int64_t length_, pieces_, ranges_;
  float* const room_;
  std::vector<std::atomic<std::int64_t>> unscored_;  // pieces that remain of each KV head; -1 once it has its softmax
  std::atomic<std::int64_t> next_{0};
};

template <class Shared>
void together(Shared shared, std::int64_t threads) {
  vnpu::team().share(int(threads) - 1, [](void* it) { static_cast<Shared*>(it)->work(); }, [](void*) {}, &shared);
}

constexpr std::int64_t kWorthAThread = 1 << 17;  // multiply-adds; below, calling a thread costs more than it saves

}  // namespace

#define EXPORTED extern "C" __attribute__((visibility("default")))

// Store the new rows of keys and values at their positions of the cache. Returns 0.
EXPORTED int keep_rows(const Layer* layer, void*, void*) {
  const std::int64_t width = layer->head_dim, heads = layer->kv_heads;
  const KVPosition& positions = *layer->position;
  for (std::int64_t row = 0; row < positions.rows; ++row) {
    const std::int64_t position = positions.row_positions ? positions.row_positions[row] : positions.position + row;
    for (std::int64_t head = 0; head < heads; ++head) {
      const std::int64_t to = (head * layer->capacity + position) * width, from = (row * heads + head) * width;
      std::memcpy(layer->keys + to, layer->key_rows + from, width * sizeof(std::uint16_t));
      std::memcpy(layer->values + to, layer->value_rows + from, width * sizeof(std::uint16_t));
    }
  }
  return 0;
}

// Store the new rows of a state at the tokens' own positions. Returns 0.
EXPORTED int store_state_rows(const StateLayer* layer, void*, void*) {
  const StatePositions& positions = *layer->positions;
  for (std::int64_t token = 0; token < positions.tokens; ++token) {
    const std::int64_t own = positions.positions[(token + 1) * positions.reads - 1];
    std::memcpy(layer->state + own * layer->width, layer->rows + token * layer->width, layer->width * sizeof(std::uint16_t));
  }
  return 0;
}

// Write the rows that each token reads to the first of the layer's rows, and zeros to those behind. Returns 0.
EXPORTED int gather_state_rows(const StateLayer* layer, void*, void*) {
  const StatePositions& positions = *layer->positions;
  std::memset(layer->rows, 0, layer->nbytes);
  for (std::int64_t read = 0; read < positions.tokens * positions.reads; ++read) {
    const std::int64_t position = positions.positions[read];
    if (position < 0) continue;
    std::memcpy(layer->rows + read * layer->width, layer->state + position * layer->width,
                layer->width * sizeof(std::uint16_t));
  }
  return 0;
}

// Write the attention over the cache to the layer's `out`. Returns 0.
EXPORTED int decode_attention(const Layer* layer, void*, void*) {
  const Job job(*layer);
  const std::int64_t work = 2 * job.heads * job.head_dim * job.positions;
  const std::int64_t threads = std::max<std::int64_t>(1, std::min(job.threads, work / kWorthAThread));
  if (job.kv_heads % threads == 0 || job.kv_heads >= 4 * threads) {
    together<ByHeads>(ByHeads(job), threads);
  } else {
    together<ByPieces>(ByPieces(job, threads), threads);
  }
  return 0;
}
