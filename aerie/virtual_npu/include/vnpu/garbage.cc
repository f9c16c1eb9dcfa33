#include "vnpu/garbage.h"

// The linker puts the objects of kernels between these two symbols (aerie/virtual_npu/toolchain.py): the memory between them is
// variables of kernels. Programs without kernels have neither symbol.
extern "C" {
extern char vnpu_statics_begin[] __attribute__((weak, visibility("hidden")));
extern char vnpu_statics_end[] __attribute__((weak, visibility("hidden")));
}

namespace vnpu {

uint64_t garbage_seed = 0;

namespace {

// splitmix64, Vigna 2015.
uint64_t mixed(uint64_t x) {
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
  x = (x ^ x >> 27) * 0x94d049bb133111ebu;
  return x ^ x >> 31;
}

// Four bf16, which are also two f32: of either sign, from 2^-8 up to 2^8.
uint64_t plausible(uint64_t drawn) {
  uint64_t word = 0;
  for (int i = 0; i < 4; ++i) {
    const uint64_t part = drawn >> 16 * i & 0xffff, exponent = 119 + part % 16, rest = part >> 8 & 0x7f;
    word |= ((part >> 15) << 15 | exponent << 7 | rest) << 16 * i;
  }
  return word;
}

}  // namespace

void fill_with_garbage(void *data, i64 bytes, uint64_t key) {
  char *const to = static_cast<char *>(data);
  for (i64 at = 0; at < bytes; at += 8) {
    const uint64_t word = plausible(mixed(garbage_seed * 0x100000001b3u + key * 0x10001u + uint64_t(at)));
    memcpy(to + at, &word, size_t(bytes - at < 8 ? bytes - at : 8));
  }
}

void begin_garbage(uint64_t seed) {
  garbage_seed = seed;
#if !VNPU_SANITIZE  // which has notes of its own between variables
  char *const begin = vnpu_statics_begin, *const end = vnpu_statics_end;
  if (seed && begin && end > begin) fill_with_garbage(begin, end - begin, 0);
#endif
}

}  // namespace vnpu
