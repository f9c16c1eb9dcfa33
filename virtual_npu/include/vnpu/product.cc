// The matrix product of product.h, compiled once per shared object, whatever its shapes.
#include "vnpu/product_driver.h"

namespace vnpu {

void multiply_add(const Product &product) {
  switch (dots::order_of(product.block_steps, product.block_columns)) {
#if defined(VNPU_BF16_TILES)
    case dots::Order::kEights: return product::Driver<product::Tiles>(product).run();
#endif
#if defined(VNPU_BF16_DOTS)
    case dots::Order::kPairs: return product::Driver<product::Pairs>(product).run();
#endif
#if defined(VNPU_BF16_ARM)
    case dots::Order::kOddPairs: return product::Driver<product::OddPairs>(product).run();
#endif
    default: return product::Driver<product::Plain>(product).run();
  }
}

}  // namespace vnpu
