// Sets the rounding mode of a core for code that the compiler generates: the compiler has no operation for it.

#include <aie_api/aie.hpp>

extern "C" {

// From here on the core rounds to nearest even. `first` is neither read nor written: it is the buffer that the core uses next,
// so that a compiler that orders operations by their buffers keeps this call before that use.
void round_to_even(const void* first) {
  (void)first;
  aie::set_rounding(aie::rounding_mode::conv_even);
}
}
