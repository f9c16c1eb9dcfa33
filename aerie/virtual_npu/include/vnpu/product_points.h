// Products of all points of a launch whose sums are rounded: point by point, as in the text.
//
// The sums of a point are computed in a buffer that stays in L2, and go from there to c. Points with the same columns of b
// follow each other. A single point is shared out to all threads (share_panels). Of several, each is one thread's; where that
// would leave threads idle, points are cut into parts of fewer columns.
#pragma once

#include "vnpu/product_operands.h"

namespace vnpu::product {

// Rounds a row of sums to the places of their columns.
inline void round_row(const float *sums, const Offsets &columns, bf16 *to) {
  if (!columns.has_groups_of_eight()) {
    for (i64 n = 0; n < columns.count; ++n) to[columns[n]] = round_bf16(sums[n]);
    return;
  }
  for (i64 n = 0; n < columns.count; n += 8) {
    Vec<float, 8> eight;
    memcpy(&eight, sums + n, sizeof(eight));
    const Vec<bf16, 8> rounded = narrow<bf16>(eight);
    memcpy(to + columns[n], &rounded, sizeof(rounded));
  }
}

class ByPoints {
 public:
  ByPoints(const Product &product, Points points) : product_(product), points_(points) {}

  void run() {
    cut(parallel_threads());
    const i64 down = extent(product_.m, points_.m), across = extent(product_.n, points_.n);
    parallel(down * across, [&](i64 point) {
      check_running();
      multiply(point % down, point / down);
    });
  }

 private:
  static constexpr i64 kRowPadding = 16;  // padding between rows of sums, so that rows do not share sets of L1

  static constexpr i64 kPointsPerThread = 4;
  static constexpr i64 kMinColumns = 128;  // of a part: its rows of a are packed once more

  // Makes parts of the outermost axis of columns of a point points of their own.
  void cut(i64 threads) {
    const i64 points = extent(product_.m, points_.m) * extent(product_.n, points_.n);
    if (points == 1 || points % threads == 0 || points >= kPointsPerThread * threads) return;
    if (points_.n == product_.n.count || product_.n.count == Axes::kMaxAxes) return;
    const i64 wanted = (kPointsPerThread * threads + points - 1) / points;
    Axis &axis = product_.n.list[points_.n];
    const i64 inner = extent(product_.n, product_.n.count) / extent(product_.n, points_.n) / axis.extent;
    i64 parts = 1;
    for (i64 i = 2; i <= axis.extent && parts < wanted; ++i) {
      if (axis.extent % i == 0 && axis.extent / i * inner >= kMinColumns) parts = i;
    }
    const i64 each = axis.extent / parts;
    for (int i = product_.n.count++; i > points_.n; --i) product_.n.list[i] = product_.n.list[i - 1];
    product_.n.list[points_.n] = {parts, each * axis.first, each * axis.second};
    product_.n.list[++points_.n].extent = each;
  }

  static i64 extent(const Axes &axes, int points) {
    i64 count = 1;
    for (int i = 0; i < points; ++i) count *= axes.list[i].extent;
    return count;
  }
  // The offset of one point along the axes that are points.
  static i64 start(const Axes &axes, int points, i64 point, i64 Axis::*step) {
    i64 at = 0;
    for (int i = points - 1; i >= 0; --i) {
      at += point % axes.list[i].extent * (axes.list[i].*step);
      point /= axes.list[i].extent;
    }
    return at;
  }
  static Axes without(const Axes &axes, int points) {
    Axes others{axes.count - points, {}};
    for (int i = 0; i < others.count; ++i) others.list[i] = axes.list[i + points];
    return others;
  }
  // Sets the steps of a dense buffer whose innermost axis has this step; returns the step of one more axis.
  static i64 set_strides(Axes &axes, i64 step) {
    for (int i = axes.count - 1; i >= 0; --i) {
      axes.list[i].second = step;
      step *= axes.list[i].extent;
    }
    return step;
  }

  void multiply(i64 m, i64 n) const {
    Product point = product_;
    point.a += start(product_.m, points_.m, m, &Axis::first);
    point.b += start(product_.n, points_.n, n, &Axis::first);
    bf16 *const to =
        product_.rounded + start(product_.m, points_.m, m, &Axis::second) + start(product_.n, points_.n, n, &Axis::second);
    point.m = without(product_.m, points_.m), point.n = without(product_.n, points_.n);
    Blocks blocks;
    const Offsets rows(blocks, point.m, &Axis::second), columns(blocks, point.n, &Axis::second);
    const i64 row = set_strides(point.n, 1) + kRowPadding, count = set_strides(point.m, row);
    point.c = blocks.alloc<float>(count), point.rounded = nullptr;
    memset(point.c, 0, size_t(count) * sizeof(float));
    multiply_add(point);
    for (i64 i = 0; i < rows.count; ++i) round_row(point.c + i * row, columns, to + rows[i]);
  }

  Product product_;
  Points points_;
};

}  // namespace vnpu::product
