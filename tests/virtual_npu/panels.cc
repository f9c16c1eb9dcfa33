// The products of the attention kernel, by whole panels and by blocks of aie::mmul.
#include "attn_npu2.cc"

#define EXPORT extern "C" __attribute__((visibility("default")))

struct Blocks {  // an API that multiplies no panels
  struct Api {};
};

EXPORT int multiplies_panels() { return MultipliesPanels<Own>; }

EXPORT void panels_keys(const bfloat16* q, const bfloat16* k, float* scores) { multiply_keys(q, k, scores); }
EXPORT void blocks_keys(const bfloat16* q, const bfloat16* k, float* scores) { multiply_keys<Blocks>(q, k, scores); }

EXPORT void panels_values(const bfloat16* p, const bfloat16* v, const uint32_t* seen, float* acc) {
  add_values(p, v, seen, acc);
}
EXPORT void blocks_values(const bfloat16* p, const bfloat16* v, const uint32_t* seen, float* acc) {
  add_values<Blocks>(p, v, seen, acc);
}
