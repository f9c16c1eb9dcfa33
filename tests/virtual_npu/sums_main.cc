// sums.cc as a program, for an emulator of another CPU: reads operands and writes sums as bytes of row-major matrices.
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "sums.cc"

template <class T>
static std::vector<T> taken(size_t count) {
  std::vector<T> values(count);
  if (fread(values.data(), sizeof(T), count, stdin) != count) exit(2);
  return values;
}

// m n k: extents. The result of the recognised product, then that of blocks of 8x8x8 by contract, and by mmul.
int main(int count, char **arguments) {
  if (count != 4) return 3;
  const int m = atoi(arguments[1]), n = atoi(arguments[2]), k = atoi(arguments[3]);
  const auto a = taken<vnpu::bf16>(size_t(m * k)), b = taken<vnpu::bf16>(size_t(k * n));
  const auto c = taken<float>(size_t(m * n));
  const vnpu::Axes axes[] = {{1, {{m, k, n}}}, {1, {{n, 1, 1}}}, {1, {{k, 1, n}}}};
  std::vector<float> sums = c;
  multiply(a.data(), b.data(), sums.data(), axes, 8, 8);
  fwrite(sums.data(), sizeof(float), sums.size(), stdout);
  for (const auto block : {contract_8x8x8, mmul_8x8x8}) {
    for (int i = 0; i < m; i += 8) {
      for (int j = 0; j < n; j += 8) {
        alignas(64) vnpu::bf16 left[64], right[64];
        alignas(64) float total[64];
        for (int x = 0; x < 64; ++x) total[x] = c[size_t((i + x / 8) * n + j + x % 8)];
        for (int p = 0; p < k; p += 8) {
          for (int x = 0; x < 64; ++x) {
            left[x] = a[size_t((i + x / 8) * k + p + x % 8)];
            right[x] = b[size_t((p + x / 8) * n + j + x % 8)];
          }
          block(left, right, total, 1);
        }
        for (int x = 0; x < 64; ++x) sums[size_t((i + x / 8) * n + j + x % 8)] = total[x];
      }
    }
    fwrite(sums.data(), sizeof(float), sums.size(), stdout);
  }
  return 0;
}
