// The matrix product of product.h, compiled once per shared object, whatever its shapes.
#include "vnpu/product_driver.h"

namespace vnpu {

void multiply_add(const Product &product) { product::Driver<product::Best>(product).run(); }

}  // namespace vnpu
