#include "vnpu/stale.h"

#include "vnpu/check.h"

namespace vnpu {

namespace {

constexpr int kBlock = 8, kMantissa = 7;  // without the sign

// Numbers of bf16 bits: `count` blocks of 8.
struct Factor {
  const uint16_t *at;
  int count, along, across;  // steps from one number of a block to the next, and from one block to the next
  uint16_t operator()(int block, int k) const { return at[block * across + k * along]; }
};

int exponent(uint16_t bits) { return bits >> 7 & 0xff; }

// The first number, of all blocks, after which every number is zero.
int first_unused(const Factor &blocks) {
  for (int k = kBlock; k > 0; --k) {
    for (int i = 0; i < blocks.count; ++i) {
      if (blocks(i, k - 1) & 0x7fff) return k;
    }
  }
  return 0;
}

// The most bits that a block loses to the numbers from `first` on.
int max_lost(const Factor &blocks, int first) {
  int most = 0;
  for (int i = 0; i < blocks.count; ++i) {
    int used = 0, unused = 0;
    for (int k = 0; k < kBlock; ++k) {
      int &highest = k < first ? used : unused;
      if (exponent(blocks(i, k)) > highest) highest = exponent(blocks(i, k));
    }
    if (used > 0 && unused - used > most) most = unused - used;
  }
  return most < kMantissa ? most : kMantissa;
}

}  // namespace

void note_stale_rows(Site site, const uint16_t *left, int rows, const uint16_t *right) {
  const Factor of_left{left, rows, 1, kBlock}, of_right{right, kBlock, kBlock, 1};
  const int ends[2] = {first_unused(of_right), first_unused(of_left)};
  const int lost[2] = {ends[0] ? max_lost(of_left, ends[0]) : 0, ends[1] ? max_lost(of_right, ends[1]) : 0};
  for (int side = 0; side < 2; ++side) {
    if (lost[side] == 0) continue;
    note(site,
         "numbers %d to 7 of a block of the %s factor meet only zeros, but 8 numbers share an exponent: they take %d of the "
         "others' 7 bits of mantissa, so the result depends on their content; clear them (rows beyond the context, say), or "
         "end them at a multiple of 8",
         ends[side], side ? "right" : "left", lost[side]);
  }
}

}  // namespace vnpu
