// The rounding mode of a core, for roundings in code that the compiler makes itself: it has no operation that sets it.

#include <aie_api/aie.hpp>

extern "C" {

// From here on the core rounds to nearest even. `first` is neither read nor written: it is the buffer that the core
// works on next, so that whoever orders operations by their buffers keeps this call before that work.
void round_to_even(const void* first) {
  (void)first;
  aie::set_rounding(aie::rounding_mode::conv_even);
}
}
