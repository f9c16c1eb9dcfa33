// Calls of external kernels in programs built with checks: what the kernel reports through the host AIE API, and what can be
// seen of the rest after it has returned.
#include <stdio.h>

#include "vnpu/memory.h"
#include "vnpu/stale.h"

namespace vnpu {

namespace {

thread_local KernelCall *current = nullptr;

const char *const kVerbs[2] = {"reads", "writes"};

}  // namespace

}  // namespace vnpu

extern "C" {
__thread int vnpu_kernel_watched = 0;
__attribute__((cold)) void vnpu_kernel_read(const void *at, long bytes) { vnpu::current->touched(at, bytes, false); }
__attribute__((cold)) void vnpu_kernel_write(const void *at, long bytes) { vnpu::current->touched(at, bytes, true); }
__attribute__((cold)) void vnpu_kernel_misaligned(const void *at, long bytes, bool writes) {
  if (vnpu::current) vnpu::current->misaligned(at, bytes, writes);
}
void vnpu_kernel_product(const uint16_t *left, int rows, const uint16_t *right) {
  if (vnpu::current) vnpu::note_stale_rows(vnpu::current->site(), left, rows, right);
}
}

namespace vnpu {

KernelCall::KernelCall(Site site, uint64_t scalars, CleanCalls &known, Argument *arguments, int count)
    : site_(site), key_(scalars + 1), known_(known), arguments_(arguments), count_(count), outer_(current) {
  for (int i = 0; i < count; ++i) {
    const Argument &a = arguments[i];
    a.buffer->check(site, "passes", a.low, a.high);
    is_quiet_ = is_quiet_ && a.buffer->full() && !watched(*a.buffer);
    key_ = vnpu::scalars(key_, a.low - a.buffer->base, a.buffer->count);
  }
  vnpu_kernel_watched = !is_quiet_ || !known.has(key_);
  current = this;
}

KernelCall::~KernelCall() {
  current = outer_;
  vnpu_kernel_watched = outer_ != nullptr;
}

void KernelCall::touched(const void *at, i64 bytes, bool writes) {
  const char *const low = static_cast<const char *>(at), *const high = low + bytes;
  for (int i = 0; i < count_; ++i) {
    Argument &a = arguments_[i];
    Buffer &buffer = *a.buffer;
    if (low < buffer.base - buffer.guard || low >= buffer.base + buffer.count * buffer.element + buffer.guard) continue;
    if (!buffer.holds(low, high)) fail_outside(i, low, high, writes);
    if (writes) {
      a.is_written = true;
      observe_write(site_, buffer, low, bytes);
    } else {
      read(buffer, low, bytes);
    }
    return;
  }
}

void KernelCall::misaligned(const void *at, i64 bytes, bool writes) {
  const char *const low = static_cast<const char *>(at);
  for (int i = 0; i < count_; ++i) {
    const Buffer &buffer = *arguments_[i].buffer;
    if (buffer.label.skew < 0 || !buffer.holds(low, low + bytes)) continue;
    fail_misaligned(site_, writes ? "aie::store_v" : "aie::load_v", arguments_[i].position, buffer, writes, at, bytes);
  }
}

// A vector may be read if some of its lanes are written: the kernel may mask the others off.
void KernelCall::read(Buffer &buffer, const char *low, i64 bytes) {
  if (!buffer.full() && !buffer.written_in_part(low, low + bytes)) {
    buffer.mark_changed(low, low + bytes);
    if (!buffer.written_in_part(low, low + bytes)) return observe_read(site_, buffer, low, bytes);
  }
  if (watched(buffer)) touch(site_, buffer, low, bytes, false);
}

void KernelCall::fail_outside(int argument, const char *low, const char *high, bool writes) const {
  char verb[40];
  snprintf(verb, sizeof(verb), "%s, in argument %d,", kVerbs[writes], arguments_[argument].position);
  arguments_[argument].buffer->check(site_, verb, low, high);
  __builtin_unreachable();
}

// A kernel also writes by plain C++, which is not reported. Elements that are no longer all ones were written. An integer may
// be all ones legitimately, so integers all count as written unless the kernel reported otherwise.
void KernelCall::finish() {
  known_.add(key_);
  for (int i = 0; i < count_; ++i) {
    Argument &a = arguments_[i];
    Buffer &buffer = *a.buffer;
    if (const i64 strays = buffer.count_strays()) {
      fail_as(Failure::kOutside, site_, "wrote %lld bytes outside of argument %d, %s", (long long)strays, a.position,
              BufferText(buffer.label).text);
    }
    if (buffer.full()) continue;
    if (a.is_float) buffer.mark_changed(a.low, a.high);
    else if (!a.is_written) buffer.mark(a.low, a.high);
  }
}

}  // namespace vnpu
