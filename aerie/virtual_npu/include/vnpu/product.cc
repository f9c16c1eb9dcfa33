// The matrix product of product.h, compiled once per shared object, whatever its shapes.
#include "vnpu/product_driver.h"
#include "vnpu/product_points.h"

namespace vnpu {

void multiply_add(const Product &product) {
  switch (dots::order_of(product.block_steps, product.block_columns)) {
#if defined(VNPU_BF16_TILES)
    case dots::Order::kTiles:
      if (dots::depth_of(product.block_steps) == 8) return product::multiply<product::Tiles<8>>(product);
      return product::multiply<product::Tiles<32>, product::ColumnTiles>(product);
#endif
#if defined(VNPU_BF16_PAIRS)
    case dots::Order::kPairs: return product::multiply<product::Pairs, product::FewRows<product::FewPairs>>(product);
#endif
#if defined(VNPU_BF16_ARM)
    case dots::Order::kOddPairs: return product::multiply<product::OddPairs>(product);
#endif
    default: return product::multiply<product::Plain, product::FewRows<product::FewPlain>>(product);
  }
}

void multiply_rounded(Product product, bf16 *c, Points points) {
  product.rounded = c;
#if defined(VNPU_BF16_TILES)
  if (product::ColumnTiles::may_serve(product)) {
    product::ColumnTiles tiles(product);
    if (tiles.serves()) return tiles.run();
  }
#endif
  product::ByPoints(product, points).run();
}

}  // namespace vnpu
