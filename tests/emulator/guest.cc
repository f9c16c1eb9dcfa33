// Runs in an emulator of another CPU and executes requests from standard input: it loads shared objects of programs and host
// code, and calls their functions. All numbers are 8 bytes. The first number of a request is its kind:
//
//   0  length, path                        load a shared object      ->  its handle
//   1  handle, length, name                look a symbol up          ->  its address, 0 where there is none
//   2  address                             read a text               ->  length, text
//   3  address of the function, buffers,   call function(0, 1, 2)    ->  what it gave, the bytes of each buffer
//      relocations, then of each buffer    of the first three
//      its size and bytes, and of each     buffers
//      relocation buffer, offset, target
//
// A relocation puts the address of buffer `target` into another one. Addresses mean nothing outside of this process.
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <string>
#include <vector>

namespace {

void take(void *to, size_t bytes) {
  if (fread(to, 1, bytes, stdin) != bytes) exit(0);  // the other side has closed
}
int64_t number() {
  int64_t value;
  take(&value, sizeof value);
  return value;
}
std::string text() {
  std::string value(size_t(number()), ' ');
  take(value.data(), value.size());
  return value;
}
void give(int64_t value) { fwrite(&value, sizeof value, 1, stdout); }

void call() {
  const auto function = reinterpret_cast<int (*)(void *, void *, void *)>(number());
  std::vector<std::string> whole(static_cast<size_t>(number()));
  int64_t relocations = number();
  std::vector<char *> buffers;
  for (std::string &held : whole) {
    const size_t size = size_t(number());
    held.resize(size + 64);
    char *const start = held.data() + (64 - reinterpret_cast<uintptr_t>(held.data()) % 64) % 64;
    take(start, size);
    buffers.push_back(start);
  }
  for (; relocations; --relocations) {
    char *const buffer = buffers.at(size_t(number())), *const place = buffer + number();
    memcpy(place, &buffers.at(size_t(number())), sizeof(char *));
  }
  const auto argument = [&](size_t i) { return i < buffers.size() ? buffers[i] : nullptr; };
  give(function(argument(0), argument(1), argument(2)));
  for (size_t i = 0; i < buffers.size(); ++i) fwrite(buffers[i], 1, whole[i].size() - 64, stdout);
}

}  // namespace

int main() {
  for (;;) {
    const int64_t wanted = number();
    if (wanted == 0) {
      void *const handle = dlopen(text().c_str(), RTLD_NOW | RTLD_LOCAL);
      if (!handle) fprintf(stderr, "%s\n", dlerror());
      give(reinterpret_cast<int64_t>(handle));
    } else if (wanted == 1) {
      void *const handle = reinterpret_cast<void *>(number());
      give(reinterpret_cast<int64_t>(dlsym(handle, text().c_str())));
    } else if (wanted == 2) {
      const char *const address = reinterpret_cast<const char *>(number());
      give(int64_t(strlen(address)));
      fputs(address, stdout);
    } else {
      call();
    }
    fflush(stdout);
  }
}
