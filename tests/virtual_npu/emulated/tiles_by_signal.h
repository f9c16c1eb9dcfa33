// Emulates the compiled tile instructions of AMX-BF16 on CPUs without them: each raises SIGILL, and the handler executes it
// from its bytes. Included before a source of the virtual NPU that is built for AMX (-include).
//
// So the test runs the compiled machine code: the encoding of instructions, their addresses, and what the compiler moved past
// them, which intrinsics in plain C++ (tiles.h) do not show. Source of the encodings: Intel's Software Developer's Manual,
// volume 2. A system without AMX cannot grant permission to use it either, so the permission is assumed.
#pragma once

#include <signal.h>
#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>

#include "tile_instructions.h"

namespace emulated {

template <class... Arguments>
long system_call(long number, Arguments... arguments) {
  return number == SYS_arch_prctl ? 0 : ::syscall(number, arguments...);
}

// A VEX-encoded instruction of opcode map 0F38, without L and W, and its operands.
class Instruction {
 public:
  explicit Instruction(const mcontext_t &cpu) : cpu_(cpu), bytes_(reinterpret_cast<const uint8_t *>(cpu.gregs[REG_RIP])) {
    if (bytes_[0] != 0xc4 || (bytes_[1] & 0x1f) != 2 || (bytes_[2] & 0x84) != 0) __builtin_trap();
    if (!is_of_registers()) find_address();
  }

  // Opcode and prefix: none, 66, F3, F2.
  int what() const { return bytes_[3] << 4 | (bytes_[2] & 3); }
  bool is_of_registers() const { return bytes_[4] >> 6 == 3; }
  int reg() const { return bytes_[4] >> 3 & 7; }
  int rm() const { return bytes_[4] & 7; }
  int vvvv() const { return ~bytes_[2] >> 3 & 15; }
  char *address() const { return reinterpret_cast<char *>(base_ + displacement_); }
  int64_t stride() const { return index_; }
  int64_t length() const { return length_; }

 private:
  int64_t value_of(int number) const {
    static constexpr int kPlaces[] = {REG_RAX, REG_RCX, REG_RDX, REG_RBX, REG_RSP, REG_RBP, REG_RSI, REG_RDI,
                                      REG_R8,  REG_R9,  REG_R10, REG_R11, REG_R12, REG_R13, REG_R14, REG_R15};
    return cpu_.gregs[kPlaces[number]];
  }
  bool extends(int bit) const { return !(bytes_[1] >> bit & 1); }
  template <class Number>
  int64_t number() {
    Number found;
    memcpy(&found, bytes_ + length_, sizeof(found));
    length_ += int(sizeof(found));
    return found;
  }

  void find_address() {
    const int mode = bytes_[4] >> 6;
    int base = rm();
    if (base == 4) {
      const int sib = bytes_[length_++], index = (sib >> 3 & 7) | extends(6) << 3;
      base = sib & 7;
      index_ = index == 4 ? 0 : value_of(index) << (sib >> 6);
    }
    const bool is_absolute = mode == 0 && base == 5;
    if (mode == 1) displacement_ = number<int8_t>();
    else if (mode == 2 || is_absolute) displacement_ = number<int32_t>();
    if (!is_absolute) base_ = value_of(base | extends(5) << 3);
    else if (rm() == 5) base_ = reinterpret_cast<int64_t>(bytes_) + length_;
  }

  const mcontext_t &cpu_;
  const uint8_t *const bytes_;
  int length_ = 5;
  int64_t base_ = 0, index_ = 0, displacement_ = 0;
};

inline void run(const Instruction &given) {
  switch (given.what()) {
    case 0x490:
      if (given.is_of_registers()) tile_state.is_configured = false;
      else load_config(given.address());
      return;
    case 0x493: return zero(given.reg());
    case 0x4b3: return load(given.reg(), given.address(), given.stride());
    case 0x4b2: return store(given.reg(), given.address(), given.stride());
    case 0x5c2: return dpbf16ps(given.reg(), given.rm(), given.vvvv());
    default: __builtin_trap();
  }
}

inline void on_illegal_instruction(int, siginfo_t *, void *context) {
  mcontext_t &cpu = static_cast<ucontext_t *>(context)->uc_mcontext;
  const Instruction given(cpu);
  run(given);
  cpu.gregs[REG_RIP] += given.length();
}

// Runs from the time a shared object of ours is loaded.
inline const int installed = [] {
  struct sigaction action = {};
  action.sa_sigaction = on_illegal_instruction;
  action.sa_flags = SA_SIGINFO | SA_NODEFER;
  return sigaction(SIGILL, &action, nullptr);
}();

}  // namespace emulated

#define syscall emulated::system_call
