// The text of a record, in JSON (record.cc, aie/trace.cc).
#pragma once

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "vnpu/base.h"

namespace vnpu::record {

// A text that grows.
class Text {
 public:
  Text() = default;
  Text(const Text &) = delete;
  ~Text() { free(text_); }
  void put(const char *format, ...) __attribute__((format(printf, 2, 3))) {
    va_list arguments;
    for (;;) {
      va_start(arguments, format);
      const int needed = vsnprintf(text_ ? text_ + used_ : nullptr, capacity_ - used_, format, arguments);
      va_end(arguments);
      if (used_ + size_t(needed) < capacity_) {
        used_ += size_t(needed);
        return;
      }
      capacity_ = 2 * capacity_ + size_t(needed) + 1024;
      text_ = static_cast<char *>(realloc(text_, capacity_));
    }
  }
  const char *text() const { return text_ ? text_ : ""; }
  // Hands the memory over, which is malloc'ed.
  char *give() {
    char *const given = text_;
    text_ = nullptr;
    used_ = capacity_ = 0;
    return given;
  }

 private:
  char *text_ = nullptr;
  size_t used_ = 0, capacity_ = 0;
};

// A name as it stands in a string of JSON: symbols of MLIR may contain any character.
struct Quoted {
  char text[560];
  explicit Quoted(const char *name) {
    size_t used = 0;
    for (; *name && used + 8 < sizeof(text); ++name) {
      const unsigned char c = static_cast<unsigned char>(*name);
      if (c == '"' || c == '\\') text[used++] = '\\';
      text[used++] = c < 32 ? '?' : char(c);
    }
    text[used] = 0;
  }
};

}  // namespace vnpu::record
