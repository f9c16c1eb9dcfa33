// The gated delta rule of linear attention, for a run of a sequence's positions and a tile of a head's state. A state S is a
// matrix of keys by values; a position with query q, key k, value v, decay a and rate b makes of it
//
//   S = a S;   S = S + k (b (v - k S));   out = q S
//
// Queries and keys are divided by their length, queries by the root of DELTA_KEY too. Columns of S do not depend on each other,
// so a core takes DELTA_TILE of them. All is f32, but for the result, which is rounded once. A position that is not there
// leaves S as it is, to the bit, and has zeros for a result.

#include <cstdint>

#include <aie_api/aie.hpp>

#ifndef DELTA_KEY
#define DELTA_KEY 128
#endif
#ifndef DELTA_VALUE
#define DELTA_VALUE 128
#endif
#ifndef DELTA_TILE
#define DELTA_TILE 32
#endif

namespace {

constexpr unsigned lanes = 16;
constexpr int32_t keys = DELTA_KEY, values = DELTA_VALUE, tile = DELTA_TILE;
constexpr int32_t row_width = 2 * keys + values + lanes;
using F32 = aie::vector<float, lanes>;
using Acc = aie::accum<accfloat, lanes>;

inline F32 as_f32(const bfloat16* x) { return Acc(aie::load_v<lanes>(x)).to_vector<float>(); }

// unit = x times the scale over its length, as l2norm of the models has it, with 1e-6 under the root.
inline void normalize(const bfloat16* x, float* unit, float scale) {
  F32 squares = aie::zeros<float, lanes>();
  for (int32_t i = 0; i < keys; i += lanes) {
    const F32 v = as_f32(x + i);
    squares = aie::add(squares, aie::mul(v, v).to_vector<float>());
  }
  const F32 factor = aie::broadcast<float, lanes>(aie::invsqrt(aie::reduce_add(squares) + 1e-6f) * scale);
  for (int32_t i = 0; i < keys; i += lanes) aie::store_v(unit + i, aie::mul(as_f32(x + i), factor).to_vector<float>());
}

// One position for 16 columns of the state.
inline void step(float* state, const float* query, const float* key, const bfloat16* value, bfloat16* out, float decay,
                 float rate) {
  const F32 kept = aie::broadcast<float, lanes>(decay);
  F32 seen = aie::zeros<float, lanes>();
  for (int32_t i = 0; i < keys; ++i) {
    const F32 s = aie::mul(aie::load_v<lanes>(state + i * tile), kept).to_vector<float>();
    aie::store_v(state + i * tile, s);
    seen = aie::add(seen, aie::mul(s, aie::broadcast<float, lanes>(key[i])).to_vector<float>());
  }
  const F32 missing = aie::sub(as_f32(value), seen);
  const F32 added = aie::mul(missing, aie::broadcast<float, lanes>(rate)).to_vector<float>();
  F32 sum = aie::zeros<float, lanes>();
  for (int32_t i = 0; i < keys; ++i) {
    const F32 more = aie::mul(added, aie::broadcast<float, lanes>(key[i])).to_vector<float>();
    const F32 s = aie::add(aie::load_v<lanes>(state + i * tile), more);
    aie::store_v(state + i * tile, s);
    sum = aie::add(sum, aie::mul(s, aie::broadcast<float, lanes>(query[i])).to_vector<float>());
  }
  aie::store_v(out, Acc(sum).to_vector<bfloat16>());
}

}  // namespace

extern "C" {

// state = start, keys x tile. A state arrives in a buffer of its own: one that is sent as well has two pairs of locks, and the
// next state would come while the one before is still being sent.
void begin_delta_rule_f32(const float* __restrict start, float* __restrict state) {
  for (int32_t i = 0; i < keys * tile; i += lanes) aie::store_v(state + i, aie::load_v<lanes>(start + i));
}

// rows: count x row_width, of each position the query, the key, 16 elements that are 8 f32 (decay, rate, and 1 if the position
// is there), the value of the whole head. units: scratch, 2 x keys. state: keys x tile, read and written. out: count x tile.
// first: the first column of the tile.
void gated_delta_rule_bf16(const bfloat16* __restrict rows, float* __restrict units, float* __restrict state,
                           bfloat16* __restrict out, int32_t count, int32_t first) {
  aie::set_rounding(aie::rounding_mode::conv_even);
  const float query_scale = aie::invsqrt(float(keys));
  for (int32_t row = 0; row < count; ++row) {
    const aie::vector<float, lanes / 2> gates = aie::load_v<lanes>(rows + 2 * keys).cast_to<float>();
    if (gates.get(2) == 0.0f) {
      for (int32_t i = 0; i < tile; i += lanes) aie::store_v(out + i, aie::zeros<bfloat16, lanes>());
    } else {
      normalize(rows, units, query_scale);
      normalize(rows + keys, units + keys, 1.0f);
      const bfloat16* value = rows + 2 * keys + lanes + first;
      for (int32_t i = 0; i < tile; i += lanes)
        step(state + i, units, units + keys, value + i, out + i, gates.get(0), gates.get(1));
    }
    rows += row_width;
    out += tile;
  }
}
}
