// Decode attention on the host: one query position against the KV cache, read where it lies.
//
// Scores, softmax and sums are float32, and the result is rounded to bf16 once. A head is computed by one thread,
// and a position is treated the same wherever it falls in a tile, so the number of threads changes no bit.
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
#include <utility>
#include <vector>

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

// The position of the decoded token, and those that it attends to: first .. last - 1.
struct Place {
  std::int64_t position, first, last;
};

// One layer's part of a decoded token; llama32_1b/native has the same struct.
struct Layer {
  const std::uint16_t* query;                  // (heads * head_dim)
  const std::uint16_t *key_row, *value_row;    // (kv_heads * head_dim) of the token itself
  std::uint16_t *keys, *values;                // (kv_heads, capacity, head_dim)
  std::uint16_t* out;                          // (heads * head_dim)
  std::int64_t heads, kv_heads, head_dim, capacity, threads;
  const Place* place;
};

struct Job : Layer {
  std::int64_t first, last;
  float scale;

  explicit Job(const Layer& layer)
      : Layer(layer),
        first(place->first),
        last(place->last),
        scale(float(1 / std::sqrt(double(head_dim)))) {}

  std::int64_t positions() const { return last - first; }
  std::int64_t padded() const { return (positions() + kTile - 1) / kTile * kTile; }
};

// Bytes of the cache that are asked of memory before their turn: the CPU by itself asks for too few while it computes.
constexpr std::int64_t kAhead = 8192;

INLINE void fetch_ahead(const std::uint16_t* rows, std::int64_t elements) {
  const char* const from = reinterpret_cast<const char*>(rows) + kAhead;
  for (std::int64_t at = 0; at < elements * 2; at += 64) __builtin_prefetch(from + at);
}

// Scores of HEADS heads: scores[head * padded + position]. Rows past the last are the last again.
template <int HEADS>
void score(const Job& job, const float* query, const std::uint16_t* keys, float* scores) {
  constexpr int kRows = kTile / HEADS;
  for (std::int64_t at = 0; at < job.positions(); at += kRows) {
    Floats sums[kTile] = {};
    const std::uint16_t* rows[kRows];
    for (int row = 0; row < kRows; ++row) rows[row] = keys + std::min(at + row, job.positions() - 1) * job.head_dim;
    fetch_ahead(rows[0], kRows * job.head_dim);
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
      std::memcpy(scores + head * job.padded() + at, found + head * kRows, kRows * sizeof(float));
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

// To sums, of HEADS heads and kPair elements each: the weighted values of so many positions.
template <int HEADS>
void add_values(const Job& job, const float* weights, const std::uint16_t* values, std::int64_t positions,
                float* sums) {
  Floats even[HEADS], odd[HEADS];
  for (int head = 0; head < HEADS; ++head) {
    even[head] = load(sums + head * job.head_dim);
    odd[head] = load(sums + head * job.head_dim + kLanes);
  }
  for (std::int64_t at = 0; at < positions; ++at) {
    const std::uint16_t* const row = values + at * job.head_dim;
    fetch_ahead(row, kPair);
    const Pair value(row);
    for (int head = 0; head < HEADS; ++head) {
      const float weight = weights[head * job.padded() + at];
      even[head] += weight * value.even;
      odd[head] += weight * value.odd;
    }
  }
  for (int head = 0; head < HEADS; ++head) {
    store(sums + head * job.head_dim, even[head]);
    store(sums + head * job.head_dim + kLanes, odd[head]);
  }
}

// The values, weighted and added, of HEADS heads. sums: room for HEADS * head_dim.
template <int HEADS>
void mix(const Job& job, const float* weights, const float* totals, const std::uint16_t* values, float* sums,
         std::uint16_t* out) {
  std::fill(sums, sums + HEADS * job.head_dim, 0.0f);
  for (std::int64_t at = 0; at < job.positions(); at += kBlock) {
    const std::int64_t some = std::min(kBlock, job.positions() - at);
    const std::uint16_t* const rows = values + at * job.head_dim;
    for (std::int64_t d = 0; d < job.head_dim; d += kPair)
      add_values<HEADS>(job, weights + at, rows + d, some, sums + d);
  }
  for (int head = 0; head < HEADS; ++head) {
    for (std::int64_t d = head * job.head_dim; d < (head + 1) * job.head_dim; d += kPair) {
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

template <int HEADS>
void attend(const Job& job, std::int64_t kv_head, std::int64_t head, std::vector<float>& scratch) {
  const std::int64_t padded = job.padded(), first_row = (kv_head * job.capacity + job.first) * job.head_dim;
  scratch.resize(HEADS * (padded + 2 * job.head_dim));
  float *scores = scratch.data(), *query = scores + HEADS * padded, *sums = query + HEADS * job.head_dim;
  arrange(job.query + head * job.head_dim, HEADS * job.head_dim, query);
  score<HEADS>(job, query, job.keys + first_row, scores);
  float totals[HEADS];
  for (int i = 0; i < HEADS; ++i) totals[i] = soften(scores + i * padded, job.positions(), padded);
  mix<HEADS>(job, scores, totals, job.values + first_row, sums, job.out + head * job.head_dim);
}

// All query heads that share a KV head, four at a time while there are as many.
void attend_group(const Job& job, std::int64_t kv_head, std::vector<float>& scratch) {
  const std::int64_t group = job.heads / job.kv_heads;
  std::int64_t head = kv_head * group;
  const std::int64_t end = head + group;
  for (; end - head >= 4; head += 4) attend<4>(job, kv_head, head, scratch);
  for (; end - head >= 2; head += 2) attend<2>(job, kv_head, head, scratch);
  for (; head < end; ++head) attend<1>(job, kv_head, head, scratch);
}

// KV heads until none is left: whoever is started late does fewer.
void attend_next(const Job& job, std::atomic<std::int64_t>& next) {
  std::vector<float> scratch;
  for (std::int64_t kv_head; (kv_head = next++) < job.kv_heads;) attend_group(job, kv_head, scratch);
}

constexpr std::int64_t kWorthAThread = 1 << 19;  // multiply-adds; below, starting a thread costs more than it saves

}  // namespace

#define EXPORTED extern "C" __attribute__((visibility("default")))

// The token's row of keys and values, stored at its position of the cache. Gives 0.
EXPORTED int keep_row(const Layer* layer, void*, void*) {
  const std::int64_t width = layer->head_dim, position = layer->place->position;
  for (std::int64_t head = 0; head < layer->kv_heads; ++head) {
    const std::int64_t to = (head * layer->capacity + position) * width, nbytes = width * sizeof(std::uint16_t);
    std::memcpy(layer->keys + to, layer->key_row + head * width, nbytes);
    std::memcpy(layer->values + to, layer->value_row + head * width, nbytes);
  }
  return 0;
}

// Attention over the cache, into the layer's `out`. Gives 0.
EXPORTED int decode_attention(const Layer* layer, void*, void*) {
  const Job job(*layer);
  const std::int64_t work = 2 * job.heads * job.head_dim * job.positions();
  const std::int64_t shares = std::max<std::int64_t>(1, std::min({job.threads, job.kv_heads, work / kWorthAThread}));
  std::atomic<std::int64_t> next = 0;
  std::vector<std::thread> helpers;
  for (std::int64_t share = 1; share < shares; ++share) helpers.emplace_back([&] { attend_next(job, next); });
  attend_next(job, next);
  for (std::thread& helper : helpers) helper.join();
  return 0;
}
