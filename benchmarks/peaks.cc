// The peak multiplication rate of a machine's threads: of the matrix product's micro-kernel alone, on data in L1, and of f32
// fused multiply-adds in registers. Compiled for the instruction set of programs.

#include <barrier>
#include <chrono>
#include <thread>
#include <vector>

#include "vnpu/product_driver.h"
#if defined(__aarch64__)
#include <arm_neon.h>
#elif defined(__FMA__)
#include <immintrin.h>
#endif

// If the system denies a micro-kernel, it fails here: product_rate returns 0.
void vnpu::fail(Site, const char *, ...) { throw 0; }

namespace {

using namespace vnpu;
using Clock = std::chrono::steady_clock;

constexpr double kOperations = double(1 << 28);  // per thread in one measurement: some milliseconds
constexpr int kMinReadings = 5;

#if defined(VNPU_BF16_TILES)
using MicroKernel = product::ColumnKernel;
#elif defined(VNPU_BF16_PAIRS)
using MicroKernel = product::Pairs;
#elif defined(VNPU_BF16_ARM)
using MicroKernel = product::OddPairs;
#else
using MicroKernel = product::Plain;
#endif

// As many rows and columns as the micro-kernel takes, over as many steps of k as fit 16 KiB of columns.
template <class Kernel>
class InL1 {
 public:
  InL1() {
    for (int n = 0; n < Kernel::kColumns; ++n) columns_[n] = n;
    for (int r = 0; r < Kernel::kRows; ++r) {
      rows_[r] = left_ + r * kSteps;
      sums_[r] = sum_ + r * Kernel::kColumns;
    }
  }
  double operations() const { return 2.0 * Kernel::kRows * Kernel::kColumns * kSteps; }
  void operator()() { Kernel::template add<Kernel::kRows>(rows_, right_, kSteps, sums_, {columns_, Kernel::kColumns, 32}); }

 private:
  using Left = typename Kernel::Left;
  [[maybe_unused]] const typename Kernel::Turn turn_{};
  static constexpr int kPanel = 16 << 10, kSteps = kPanel / (Kernel::kColumns * int(sizeof(Left))) / 32 * 32;

  alignas(64) Left left_[Kernel::kRows * kSteps] = {};
  alignas(64) typename Kernel::Packed right_[kPanel / sizeof(typename Kernel::Packed)] = {};
  alignas(64) float sum_[Kernel::kRows * Kernel::kColumns] = {};
  i64 columns_[Kernel::kColumns];
  const Left *rows_[Kernel::kRows];
  float *sums_[Kernel::kRows];
};

#if defined(VNPU_BF16_TILES)
// Tiles take unpacked columns and packed rows, over as many steps of k as fit 16 KiB of either.
template <>
class InL1<product::ColumnKernel> {
 public:
  double operations() const { return 2.0 * Kernel::kRows * Kernel::kColumns * kSteps; }
  void operator()() {
    Kernel::Lines none;
    Kernel::add<2, 2>({columns_, kSteps * i64(sizeof(bf16)), rows_, kSteps, true, 0}, sums_, none);
  }

 private:
  using Kernel = product::ColumnKernel;
  [[maybe_unused]] const Kernel::Turn turn_{};
  static constexpr int kPanel = 16 << 10, kSteps = kPanel / (Kernel::kColumns * int(sizeof(bf16)));

  alignas(64) bf16 columns_[Kernel::kColumns * kSteps] = {};
  alignas(64) Kernel::Pair rows_[kPanel / sizeof(Kernel::Pair)] = {};
  alignas(64) float sums_[Kernel::kRows * Kernel::kColumns] = {};
};
#endif

#if defined(__AVX512F__)
using Floats = __m512;
constexpr int kSums = 24;
inline Floats fused(Floats a, Floats b, Floats c) { return _mm512_fmadd_ps(a, b, c); }
#elif defined(__FMA__)
using Floats = __m256;
constexpr int kSums = 12;
inline Floats fused(Floats a, Floats b, Floats c) { return _mm256_fmadd_ps(a, b, c); }
#elif defined(__aarch64__)
using Floats = float32x4_t;
constexpr int kSums = 24;
inline Floats fused(Floats a, Floats b, Floats c) { return vfmaq_f32(c, a, b); }
#else
typedef float Floats __attribute__((vector_size(16)));
constexpr int kSums = 12;
inline Floats fused(Floats a, Floats b, Floats c) { return a * b + c; }
#endif

// Independent sums.
class FusedMultiplyAdds {
 public:
  double operations() const { return 2.0 * kTimes * kSums * (sizeof(Floats) / sizeof(float)); }
  void operator()() {
    Floats sums[kSums];
    for (Floats &sum : sums) sum = start_;  // hides from the compiler that the number is the same each time
    const Floats a = start_, b = start_;
    for (int i = 0; i < kTimes; ++i) {
#pragma GCC unroll 24
      for (int s = 0; s < kSums; ++s) sums[s] = fused(a, b, sums[s]);
    }
    for (const Floats &sum : sums) end_ = end_ + sum;
  }

 private:
  static constexpr int kTimes = 512;
  volatile Floats start_ = {}, end_ = {};
};

// Operations per second of several threads together: the best measurement, because other load can only slow one down.
template <class Work>
double best_rate(i64 threads, double seconds) {
  double best = 0;
  bool continues = true;
  std::barrier<> all(threads);
  const auto read = [&](bool leads) {
    Work work;
    const i64 calls = i64(kOperations / work.operations()) + 1;
    const auto began = Clock::now();
    for (int reading = 0; continues; ++reading) {
      all.arrive_and_wait();
      const auto from = Clock::now();
      for (i64 call = 0; call < calls; ++call) work();
      all.arrive_and_wait();
      const auto now = Clock::now();
      if (leads) {
        const double rate = double(calls * threads) * work.operations() / std::chrono::duration<double>(now - from).count();
        if (rate > best) best = rate;
        continues = reading + 1 < kMinReadings || std::chrono::duration<double>(now - began).count() < seconds;
      }
      all.arrive_and_wait();
    }
  };
  std::vector<std::thread> others;
  for (i64 i = 1; i < threads; ++i) others.emplace_back(read, false);
  read(true);
  for (std::thread &other : others) other.join();
  return best;
}

}  // namespace

#define EXPORTED extern "C" __attribute__((visibility("default")))

EXPORTED double product_rate(i64 threads, double seconds) {
  try {
    MicroKernel::prepare();
  } catch (int) {
    return 0;
  }
  return best_rate<InL1<MicroKernel>>(threads, seconds);
}
EXPORTED double fma_rate(i64 threads, double seconds) { return best_rate<FusedMultiplyAdds>(threads, seconds); }
