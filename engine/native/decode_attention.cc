// Decode attention on the host: one query position against the KV cache, read where it lies.
//
// Scores, softmax and sums are float32, and the result is rounded to bf16 once. A position's score is the same wherever
// it falls in a tile, a head's softmax is one thread's work, and an element's sum over the positions too: so the number
// of threads, which share out heads, positions and elements, changes no bit.
//
// Vectors are the compiler's own, as wide as the machine's registers, so a head must be whole pairs of vectors:
// at most 32 elements.

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

#include "vnpu/team.h"

namespace {

#ifdef __AVX512F__
constexpr int kLanes = 16;
#elif defined(__AVX__)
constexpr int kLanes = 8;
#else
constexpr int kLanes = 4;
#endif
constexpr int kPair = 2 * kLanes;
constexpr int kTile = kLanes;  // dot products at a time: HEADS heads against kTile / HEADS positions

typedef float Floats __attribute__((vector_size(4 * kLanes)));
typedef std::int32_t Ints __attribute__((vector_size(4 * kLanes)));

Floats load(const float* from) {
  Floats values;
  std::memcpy(&values, from, sizeof values);
  return values;
}

void store(float* to, Floats values) { std::memcpy(to, &values, sizeof values); }

// kPair bf16, those at even places in one vector and those at odd places in the other. A bf16 is the upper half of
// a float32, and two of them lie in 32 bits, so nothing has to move between lanes.
struct Pair {
  Floats even, odd;

  explicit Pair(const std::uint16_t* from) {
    Ints bits;
    std::memcpy(&bits, from, sizeof bits);
    even = (Floats)(bits << 16);
    odd = (Floats)(bits & std::int32_t(0xffff0000));
  }
};

// To nearest, ties to even; a NaN stays one.
std::uint16_t round_to_bf16(float value) {
  std::uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  if ((bits & 0x7fffffff) > 0x7f800000) return std::uint16_t(bits >> 16) | 0x40;
  return std::uint16_t((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

#define INLINE __attribute__((always_inline)) inline  // what stays in registers only where it is not called

// Lanes of a, and of b from kLanes on.
template <int... LANE>
INLINE Floats picked(Floats a, Floats b) {
#if __has_builtin(__builtin_shufflevector)
  return __builtin_shufflevector(a, b, LANE...);
#else  // g++ 11
  return __builtin_shuffle(a, b, Ints{LANE...});
#endif
}

// Sums of lanes STEP apart: those of `a` where STEP is not set in the lane's number, of `b` where it is. Every lane of
// them stays where it is in one summand, and comes from its partner's place in the other.
template <int STEP, int... LANE>
INLINE Floats fold(Floats a, Floats b, std::integer_sequence<int, LANE...>) {
  const Floats own = picked<(LANE & STEP ? kLanes + LANE : LANE)...>(a, b);
  const Floats others = picked<(LANE & STEP ? LANE : kLanes + LANE)...>(a, b);
  return own + picked<(LANE ^ STEP)...>(others, others);
}

// Lane i of the result is the sum of v[FIRST + i % COUNT]'s lanes, added in the same order for every i.
template <int COUNT = kLanes, int FIRST = 0>
INLINE Floats sums_of(const Floats* v) {
  if constexpr (COUNT == 1) {
    return v[FIRST];
  } else {
    constexpr int kHalf = COUNT / 2;
    constexpr auto kEvery = std::make_integer_sequence<int, kLanes>();
    return fold<kHalf>(sums_of<kHalf, FIRST>(v), sums_of<kHalf, FIRST + kHalf>(v), kEvery);
  }
}

// e^x for x <= 0, within two units in the last place; 0 from -87 on. Cephes' polynomial on [-ln 2 / 2, ln 2 / 2].
Floats exponential(Floats x) {
  const Floats scaled = x * 1.44269504088896341f;
  const Ints whole = __builtin_convertvector(scaled - 0.5f, Ints);  // towards zero, and scaled <= 0
  const Floats n = __builtin_convertvector(whole, Floats);
  const Floats r = (x - n * 0.693359375f) - n * -2.12194440e-4f;
  Floats p = r * 1.9875691500e-4f + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  const Floats value = p * r * r + r + 1.0f;
  const Floats result = value * (Floats)((whole + 127) << 23);
  return (Floats)((Ints)result & ~(x <= -87.0f));  // a NaN stays one
}

// The position of the first of so many new rows, and the positions that a decoded token attends to: first .. last - 1.
// Rows that are not one after the other have their positions in `to`, which is null else. Where what is attended to is
// no run, as in pages of a pool, `seen` has where in the cache each of last - first positions lies, in their order.
struct Place {
  std::int64_t position, rows, first, last;
  const std::int64_t *to, *seen;
};

// One layer's part of a decoded token; __init__.py has the same struct.
struct Layer {
  const std::uint16_t* query;                  // (heads * head_dim)
  const std::uint16_t *key_rows, *value_rows;  // (rows, kv_heads * head_dim): of the tokens themselves
  std::uint16_t *keys, *values;                // (kv_heads, capacity, head_dim)
  std::uint16_t* out;                          // (heads * head_dim)
  std::int64_t heads, kv_heads, head_dim, capacity, threads;
  const Place* place;
};

struct Job : Layer {
  std::int64_t group, first, positions;
  std::int64_t padded;  // positions, to whole tiles
  const std::int64_t* seen;
  float scale;

  explicit Job(const Layer& layer)
      : Layer(layer),
        group(heads / kv_heads),
        first(place->first),
        positions(place->last - first),
        padded((positions + kTile - 1) / kTile * kTile),
        seen(place->seen),
        scale(float(1 / std::sqrt(double(head_dim)))) {}
};

// Bytes of the cache that are asked of memory before their turn: the CPU by itself asks for too few while it computes.
constexpr std::int64_t kAhead = 8192;

INLINE void fetch(const std::uint16_t* rows, std::int64_t elements) {
  const char* const from = reinterpret_cast<const char*>(rows);
  for (std::int64_t at = 0; at < elements * 2; at += 64) __builtin_prefetch(from + at);
}

// Where positions lie, of a head's rows: one after the other.
struct InARow {
  std::int64_t width;

  explicit InARow(const Job& job) : width(job.head_dim) {}
  INLINE const std::uint16_t* operator()(const std::uint16_t* rows, std::int64_t at) const { return rows + at * width; }
  INLINE const std::uint16_t* ahead(const std::uint16_t* rows, std::int64_t at) const {
    return rows + at * width + kAhead / 2;
  }
};

// The same where `seen` says it.
struct Apart {
  std::int64_t width, last, before;
  const std::int64_t* seen;

  explicit Apart(const Job& job)
      : width(job.head_dim), last(job.positions - 1), before(kAhead / 2 / width), seen(job.seen) {}
  INLINE const std::uint16_t* operator()(const std::uint16_t* rows, std::int64_t at) const {
    return rows + seen[at] * width;
  }
  INLINE const std::uint16_t* ahead(const std::uint16_t* rows, std::int64_t at) const {
    return rows + seen[std::min(at + before, last)] * width;
  }
};

// Scores of HEADS heads at positions from .. to - 1, `from` a multiple of kTile: scores[head * padded + position]. Rows
// past the last are the last again.
template <int HEADS, class Lie>
void score(const Job& job, Lie lie, const float* query, const std::uint16_t* keys, std::int64_t from, std::int64_t to,
           float* scores) {
  constexpr int kRows = kTile / HEADS;
  for (std::int64_t at = from; at < to; at += kRows) {
    Floats sums[kTile] = {};
    const std::uint16_t* rows[kRows];
    for (int row = 0; row < kRows; ++row) rows[row] = lie(keys, std::min(at + row, job.positions - 1));
    fetch(lie.ahead(keys, at), kRows * job.head_dim);
    for (std::int64_t d = 0; d < job.head_dim; d += kPair) {
      for (int row = 0; row < kRows; ++row) {
        const Pair key(rows[row] + d);
        for (int head = 0; head < HEADS; ++head) {
          const float* asked = query + head * job.head_dim + d;
          sums[head * kRows + row] += load(asked) * key.even;
          sums[head * kRows + row] += load(asked + kLanes) * key.odd;
        }
      }
    }
    float found[kTile];
    store(found, sums_of(sums) * job.scale);
    for (int head = 0; head < HEADS; ++head)
      std::memcpy(scores + head * job.padded + at, found + head * kRows, kRows * sizeof(float));
  }
}

// Softmax without its division: scores become weights, and the sum of the weights is returned.
float soften(float* scores, std::int64_t positions, std::int64_t padded) {
  std::fill(scores + positions, scores + padded, -std::numeric_limits<float>::infinity());
  Floats most = load(scores);
  for (std::int64_t at = kLanes; at < padded; at += kLanes) {
    const Floats next = load(scores + at);
    most = next > most ? next : most;
  }
  float highest = most[0];
  for (int lane = 1; lane < kLanes; ++lane) highest = std::max(highest, most[lane]);
  Floats sums = {};
  for (std::int64_t at = 0; at < padded; at += kLanes) {
    const Floats weights = exponential(load(scores + at) - highest);
    store(scores + at, weights);
    sums += weights;
  }
  float sum = 0;
  for (int lane = 0; lane < kLanes; ++lane) sum += sums[lane];
  return sum;
}

constexpr std::int64_t kBlock = 64;  // positions whose values stay in L1 while all their elements are added

// To sums, of HEADS heads and kPair elements each: the weighted values of positions from .. to - 1.
template <int HEADS, class Lie>
void add_values(const Job& job, Lie lie, const float* weights, const std::uint16_t* values, std::int64_t from, std::int64_t to,
                float* sums) {
  const std::int64_t width = job.head_dim;
  const float* of[HEADS];
  Floats even[HEADS], odd[HEADS];
  for (int head = 0; head < HEADS; ++head) {
    of[head] = weights + head * job.padded;
    even[head] = load(sums + head * width);
    odd[head] = load(sums + head * width + kLanes);
  }
  for (std::int64_t at = from; at < to; ++at) {
    fetch(lie.ahead(values, at), kPair);
    const Pair value(lie(values, at));
    for (int head = 0; head < HEADS; ++head) {
      even[head] += of[head][at] * value.even;
      odd[head] += of[head][at] * value.odd;
    }
  }
  for (int head = 0; head < HEADS; ++head) {
    store(sums + head * width, even[head]);
    store(sums + head * width + kLanes, odd[head]);
  }
}

// The values, weighted and added, of HEADS heads: elements from .. to - 1. sums: room for HEADS * head_dim.
template <int HEADS, class Lie>
void mix(const Job& job, Lie lie, const float* weights, const float* totals, const std::uint16_t* values, std::int64_t from,
         std::int64_t to, float* sums, std::uint16_t* out) {
  for (int head = 0; head < HEADS; ++head) std::fill(sums + head * job.head_dim + from, sums + head * job.head_dim + to, 0.0f);
  for (std::int64_t at = 0; at < job.positions; at += kBlock) {
    const std::int64_t end = std::min(at + kBlock, job.positions);
    for (std::int64_t d = from; d < to; d += kPair) add_values<HEADS>(job, lie, weights, values + d, at, end, sums + d);
  }
  for (int head = 0; head < HEADS; ++head) {
    for (std::int64_t d = head * job.head_dim + from; d < head * job.head_dim + to; d += kPair) {
      for (int lane = 0; lane < kLanes; ++lane) {
        out[d + 2 * lane] = round_to_bf16(sums[d + lane] / totals[head]);
        out[d + 2 * lane + 1] = round_to_bf16(sums[d + kLanes + lane] / totals[head]);
      }
    }
  }
}

// The query's elements in the order in which Pair gives those of a key.
void arrange(const std::uint16_t* query, std::int64_t count, float* arranged) {
  for (std::int64_t at = 0; at < count; at += kPair) {
    const Pair pair(query + at);
    store(arranged + at, pair.even);
    store(arranged + at + kLanes, pair.odd);
  }
}

// f(HEADS, first) for as many query heads at a time as there are: four, two or one.
template <class F>
INLINE void in_passes(std::int64_t heads, F f) {
  std::int64_t head = 0;
  for (; heads - head >= 4; head += 4) f(std::integral_constant<int, 4>(), head);
  for (; heads - head >= 2; head += 2) f(std::integral_constant<int, 2>(), head);
  for (; head < heads; ++head) f(std::integral_constant<int, 1>(), head);
}

// The query heads that share a KV head, in a room of so many floats.
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
      as_they_lie([&](auto lie) {
        ::score<count>(job_, lie, query, job_.keys + first_row_, from, to, scores_ + head * job_.padded);
      });
    });
  }
  void soften() const {
    if (!job_.seen) fetch(job_.values + first_row_, std::min(kAhead / 2, job_.positions * job_.head_dim));
    for (std::int64_t head = 0; head < job_.group; ++head)
      totals_[head] = ::soften(scores_ + head * job_.padded, job_.positions, job_.padded);
  }
  void mix(std::int64_t from, std::int64_t to) const {
    in_passes(job_.group, [&](auto count, std::int64_t head) {
      const std::int64_t at = head * job_.head_dim;
      as_they_lie([&](auto lie) {
        ::mix<count>(job_, lie, scores_ + head * job_.padded, totals_ + head, job_.values + first_row_, from, to,
                     sums_ + at, job_.out + first_element_ + at);
      });
    });
  }

 private:
  template <class F>
  INLINE void as_they_lie(F f) const {
    if (job_.seen) f(Apart(job_));
    else f(InARow(job_));
  }

  const Job& job_;
  const std::int64_t first_row_, first_element_;
  float *const scores_, *const query_, *const sums_, *const totals_;
};

// So many floats, this thread's own as long as it asks for no others.
float* own_room(std::int64_t floats) {
  thread_local std::vector<float> room;
  if (std::int64_t(room.size()) < floats) room.resize(floats);
  return room.data();
}

// Whole KV heads, taken one by one: whoever comes late does fewer.
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

// Pieces of KV heads, where whole ones would leave threads idle: first scores, positions by positions, then sums, elements
// by elements. Who scores a head's last piece makes its softmax, and pieces are taken in order: so what a sum waits for is
// under way.
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
  std::vector<std::atomic<std::int64_t>> unscored_;  // pieces of each KV head; -1 once it has its softmax
  std::atomic<std::int64_t> next_{0};
};

template <class Shared>
void together(Shared shared, std::int64_t threads) {
  vnpu::team().share(
      int(threads) - 1, [](void* it) { static_cast<Shared*>(it)->work(); }, [](void*) {}, &shared);
}

constexpr std::int64_t kWorthAThread = 1 << 17;  // multiply-adds; below, calling a thread costs more than it saves

}  // namespace

#define EXPORTED extern "C" __attribute__((visibility("default")))

// New rows of keys and values, stored at their positions of the cache. Gives 0.
EXPORTED int keep_rows(const Layer* layer, void*, void*) {
  const std::int64_t width = layer->head_dim, heads = layer->kv_heads;
  const Place& place = *layer->place;
  for (std::int64_t row = 0; row < place.rows; ++row) {
    const std::int64_t position = place.to ? place.to[row] : place.position + row;
    for (std::int64_t head = 0; head < heads; ++head) {
      const std::int64_t to = (head * layer->capacity + position) * width, from = (row * heads + head) * width;
      std::memcpy(layer->keys + to, layer->key_rows + from, width * sizeof(std::uint16_t));
      std::memcpy(layer->values + to, layer->value_rows + from, width * sizeof(std::uint16_t));
    }
  }
  return 0;
}

// Attention over the cache, into the layer's `out`. Gives 0.
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
