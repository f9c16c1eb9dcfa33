// Sums of products of small blocks, in the form that the CPU multiplies fastest. All of them except vnpu::dots::pairs::Block8x8
// sum every element in the order of K, so they give the same bits.
#pragma once

#include "arithmetic.hpp"

namespace aie {
namespace host {

// M x N sums, a row of them in as many registers as it fills.
template <typename L, unsigned M, unsigned N>
struct block {
  using row_type = registers<L, N>;

  row_type row[M];

  AIE_HOST_INLINE block() {
    each_number<M>([&](auto m) AIE_HOST_LAMBDA { row[m] = row_type(L(0)); });
  }
  AIE_HOST_INLINE explicit block(const registers<L, M * N>& from) {
    each_number<M>([&](auto m) AIE_HOST_LAMBDA { row[m] = extracted<N>(from, m); });
  }
  AIE_HOST_INLINE registers<L, M * N> lanes_of_rows() const {
    return [&]<unsigned... I>(std::integer_sequence<unsigned, I...>) AIE_HOST_LAMBDA {
      return joined(row[I]...);
    }(std::make_integer_sequence<unsigned, M>());
  }

  // += a b, K products of a row each; Exact if no product has to be rounded.
  template <bool Exact, unsigned K>
  AIE_HOST_INLINE void multiply_add(const registers<L, M * K>& a, const registers<L, K * N>& b) {
    // In memory, where a broadcast is free; from a register each broadcast costs a shuffle.
    L left[M * K];
    a.store(left);
    asm("" : "+m"(left));
    // Four rows at a time: with the rows of b they fill a CPU with 16 registers.
    constexpr unsigned some = M % 4 == 0 ? 4 : M;
#pragma GCC unroll 8
    for (unsigned first = 0; first < M; first += some)
#pragma GCC unroll 16
      for (unsigned k = 0; k < K; ++k)
#pragma GCC unroll 8
        for (unsigned m = first; m < first + some; ++m) {
          const row_type factor(left[m * K + k]), right = extracted<N>(b, k);
          const auto step = [](const auto& x, const auto& y, const auto& sum) AIE_HOST_LAMBDA {
            if constexpr (Exact) return multiply_add_bf16<row_type::width>(x, y, sum);
            else return sum + x * y;
          };
          row[m] = row_type::each(step, factor, right, row[m]);
        }
  }
};

// 8 x 8 sums of products of bf16. Two registers hold as many rows as a register has 16 bytes: one the even columns, one the odd
// ones. So one shuffle within 16 bytes spreads the left factors of all sums of these rows, and bf16 become f32 by a shift or a
// mask.
class quads {
 public:
  AIE_HOST_INLINE quads() {
    each_number<2 * groups>([&](auto i) AIE_HOST_LAMBDA { sums_[i] = Floats{}; });
  }
  AIE_HOST_INLINE explicit quads(const registers<float, 64>& rows) {
    each_number<groups>([&](auto i) AIE_HOST_LAMBDA {
      sums_[2 * i] = every_other<0>(rows.part[2 * i], rows.part[2 * i + 1]);
      sums_[2 * i + 1] = every_other<1>(rows.part[2 * i], rows.part[2 * i + 1]);
    });
  }
  AIE_HOST_INLINE registers<float, 64> lanes_of_rows() const {
    registers<float, 64> rows;
    each_number<groups>([&](auto i) AIE_HOST_LAMBDA {
      rows.part[2 * i] = alternating<0>(sums_[2 * i], sums_[2 * i + 1]);
      rows.part[2 * i + 1] = alternating<width / 2>(sums_[2 * i], sums_[2 * i + 1]);
    });
    return rows;
  }
  // += a b, both 8 x 8.
  AIE_HOST_INLINE void multiply_add(const registers<std::uint16_t, 64>& a, const registers<std::uint16_t, 64>& b) {
    in_turn();
    each_number<8>([&](auto k) AIE_HOST_LAMBDA {
      const Words row = spread_row<k % at_once>((Words)b.part[k / at_once]);
      const Floats even_columns = widened<0>(row), odd_columns = widened<1>(row);
      each_number<groups>([&](auto i) AIE_HOST_LAMBDA {
        const Floats factor = spread_lane<k / 2>(widened<k % 2>((Words)a.part[i]));
        sums_[2 * i] = multiply_add_bf16<width>(factor, even_columns, sums_[2 * i]);
        sums_[2 * i + 1] = multiply_add_bf16<width>(factor, odd_columns, sums_[2 * i + 1]);
      });
    });
    in_turn();
  }

 private:
  // All sums are in registers here. Of several blocks that share a factor, clang++ would compute a step of each in turn, and
  // AVX2 has registers for only one block's sums.
  AIE_HOST_INLINE void in_turn() {
#if defined(__clang__) && defined(__AVX2__) && !defined(__AVX512F__)
    static_assert(groups == 4, "one operand for each sum");
    asm volatile(""
                 : "+x"(sums_[0]), "+x"(sums_[1]), "+x"(sums_[2]), "+x"(sums_[3]), "+x"(sums_[4]), "+x"(sums_[5]),
                   "+x"(sums_[6]), "+x"(sums_[7]));
#endif
  }

  static constexpr unsigned width = register_bytes / 4, at_once = register_bytes / 16, groups = 8 / at_once;
  using Floats = lanes<float, width>;
  using Words = lanes<std::uint32_t, width>;
  static constexpr auto every_lane = std::make_integer_sequence<unsigned, width>();

  template <unsigned First>
  AIE_HOST_INLINE static Floats every_other(const Floats& a, const Floats& b) {
    return [&]<unsigned... I>(std::integer_sequence<unsigned, I...>) AIE_HOST_LAMBDA {
      return shuffled<(2 * I + First)...>(a, b);
    }(every_lane);
  }
  template <unsigned First>
  AIE_HOST_INLINE static Floats alternating(const Floats& a, const Floats& b) {
    return [&]<unsigned... I>(std::integer_sequence<unsigned, I...>) AIE_HOST_LAMBDA {
      return shuffled<(I / 2 + First + I % 2 * width)...>(a, b);
    }(every_lane);
  }
  // The bf16 in the lower halves of words, or in the upper ones.
  template <unsigned Upper>
  AIE_HOST_INLINE static Floats widened(const Words& pairs) {
    if constexpr (Upper) return (Floats)(pairs & 0xffff0000u);
    else return (Floats)(pairs << 16);
  }
  // Repeats 16 bytes.
  template <unsigned Row>
  AIE_HOST_INLINE static Words spread_row(const Words& rows) {
    return [&]<unsigned... I>(std::integer_sequence<unsigned, I...>) AIE_HOST_LAMBDA {
      return shuffled<(I % 4 + 4 * Row)...>(rows, rows);
    }(every_lane);
  }
  // Repeats one lane of each 16 bytes within them.
  template <unsigned Lane>
  AIE_HOST_INLINE static Floats spread_lane(const Floats& v) {
    return [&]<unsigned... I>(std::integer_sequence<unsigned, I...>) AIE_HOST_LAMBDA {
      return shuffled<(I / 4 * 4 + Lane)...>(v, v);
    }(every_lane);
  }

  Floats sums_[2 * groups];
};

}  // namespace host
}  // namespace aie
