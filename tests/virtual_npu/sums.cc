// Products of bf16 in all the ways of a program: recognised, by blocks of vector.contract, by four such blocks summed together,
// and by blocks of aie::mmul.
#include <aie_api/aie.hpp>

#include "vnpu/contract.h"
#include "vnpu/product.h"

#define EXPORT extern "C" __attribute__((visibility("default")))

// The vnpu::dots::Order of blocks with these steps of k and columns.
EXPORT int order_of(int steps, int columns) { return int(vnpu::dots::order_of(steps, columns)); }

// axes: of m, n and k. steps, columns: of the blocks of b that the program's text sums together.
EXPORT void multiply(const vnpu::bf16 *a, const vnpu::bf16 *b, float *c, const vnpu::Axes *axes, int steps, int columns) {
  vnpu::multiply_add({a, b, c, axes[0], axes[1], axes[2], steps, columns});
}

// c += the sum of products of `count` blocks of a, M x K, and of b, K x N, each row by row.
template <int M, int N, int K>
static void contract(const vnpu::bf16 *a, const vnpu::bf16 *b, float *c, int count) {
  for (int i = 0; i < count; ++i, a += M * K, b += K * N) {
    const auto left = vnpu::load<vnpu::bf16, M * K>(a);
    const auto right = vnpu::load<vnpu::bf16, K * N>(b);
    vnpu::store(c, vnpu::contract<1, M, N, K>(left, right, vnpu::load<float, M * N>(c)));
  }
}
template <int M, int N, int K>
static void four(const vnpu::bf16 *a, const vnpu::bf16 *b, float *c, int count) {
  vnpu::SummedTogether<4, M, N, K> go;
  auto sums = vnpu::load<float, M * N>(c);
  for (int i = 0; i < count; ++i, a += M * K, b += K * N) {
    sums = go.contract(vnpu::load<vnpu::bf16, M * K>(a), vnpu::load<vnpu::bf16, K * N>(b), sums);
  }
  vnpu::store(c, sums);
}
template <int M, int N, int K>
static void mmul(const bfloat16 *a, const bfloat16 *b, float *c, int count) {
  aie::mmul<M, K, N, bfloat16, bfloat16, accfloat> block(aie::load_v<M * N>(c));
  for (int i = 0; i < count; ++i, a += M * K, b += K * N) block.mac(aie::load_v<M * K>(a), aie::load_v<K * N>(b));
  aie::store_v(c, block.template to_vector<float>());
}

#define BLOCKS(kind, m, n, k)                                                                                \
  EXPORT void kind##_##m##x##n##x##k(const void *a, const void *b, float *c, int count) {                    \
    kind<m, n, k>(static_cast<const kind##_element *>(a), static_cast<const kind##_element *>(b), c, count); \
  }
using contract_element = vnpu::bf16;
using four_element = vnpu::bf16;
using mmul_element = bfloat16;
BLOCKS(contract, 8, 8, 8)
BLOCKS(contract, 4, 8, 8)
BLOCKS(contract, 8, 4, 8)
BLOCKS(contract, 4, 16, 16)
BLOCKS(contract, 8, 8, 4)
BLOCKS(contract, 2, 8, 1)
BLOCKS(contract, 4, 8, 32)
BLOCKS(four, 8, 8, 8)
BLOCKS(four, 4, 8, 8)
BLOCKS(four, 8, 4, 8)
BLOCKS(mmul, 8, 8, 8)
BLOCKS(mmul, 4, 8, 8)
BLOCKS(mmul, 8, 4, 8)
BLOCKS(mmul, 8, 8, 1)
