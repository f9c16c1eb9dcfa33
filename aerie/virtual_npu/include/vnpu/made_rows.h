// Functions of kernels that make an operand of a product (made.h) which have another form: row by row.
//
// The function itself makes blocks of 8 n by some k, each (k, n 8), as a core multiplies by them. A CPU multiplies few rows faster
// by columns of b that are runs of k. A form is used if it is announced, and if what it makes is the same.
#pragma once

#include <stdint.h>

namespace vnpu {

class MadeRows {
 public:
  // As the function, but that element (n, k) goes to to[n * apart + k], and that what it reads is in `parts` parts, of which each
  // begins from_apart bytes after the one before it.
  using Make = void (*)(int32_t argument, const uint8_t *from, int64_t from_apart, void *to, int64_t apart);

  // Announces the form of a function, which makes `depth` k; null: it has none on this CPU. An object of static storage does it
  // before any program runs.
  template <class Function>
  MadeRows(Function *function, int64_t depth, int64_t parts, Make make)
      : make(make), depth(depth), parts(parts), function_(reinterpret_cast<const void *>(function)), next_(first()) {
    if (make) first() = this;
  }

  // The form of a function; null if it has none.
  static const MadeRows *of(const void *function) {
    const MadeRows *form = first();
    while (form && form->function_ != function) form = form->next_;
    return form;
  }

  const Make make;
  const int64_t depth, parts;

 private:
  static const MadeRows *&first() {
    static const MadeRows *form = nullptr;
    return form;
  }

  const void *const function_;
  const MadeRows *const next_;
};

}  // namespace vnpu
