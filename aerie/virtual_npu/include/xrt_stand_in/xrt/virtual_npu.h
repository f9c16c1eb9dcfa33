// XRT's C++ interface, as far as hosts of NPU designs use it, carried out by a program of the virtual NPU.
//
// What a host loads as an xclbin or an ELF is the shared object that `aerie vnpu build` writes. Instructions are read and not
// looked at: the program has its runtime sequence. Compile the host with this folder before XRT's, -std=c++17 and -ldl.
#pragma once

#include <dlfcn.h>
#include <limits.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <iostream>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <type_traits>
#include <vector>

enum ert_cmd_state {
  ERT_CMD_STATE_NEW = 1,
  ERT_CMD_STATE_QUEUED = 2,
  ERT_CMD_STATE_RUNNING = 3,
  ERT_CMD_STATE_COMPLETED = 4,
  ERT_CMD_STATE_ERROR = 5,
  ERT_CMD_STATE_ABORT = 6,
  ERT_CMD_STATE_SUBMITTED = 7,
  ERT_CMD_STATE_TIMEOUT = 8,
};
enum xclBOSyncDirection { XCL_BO_SYNC_BO_TO_DEVICE = 0, XCL_BO_SYNC_BO_FROM_DEVICE = 1 };
constexpr uint32_t XCL_BO_FLAGS_CACHEABLE = 1u << 24;
constexpr uint32_t XCL_BO_FLAGS_HOST_ONLY = 1u << 29, XRT_BO_FLAGS_HOST_ONLY = XCL_BO_FLAGS_HOST_ONLY;
constexpr uint32_t XRT_BO_FLAGS_CACHEABLE = XCL_BO_FLAGS_CACHEABLE, XRT_BO_FLAGS_NONE = 0;

namespace vnpu_host {

// A knob of aerie/common/knobs.py that is a number.
inline int64_t knob(const char *name, int64_t fallback) {
  const char *const given = getenv(name);
  const int64_t number = given ? strtoll(given, nullptr, 10) : 0;
  return number > 0 ? number : fallback;
}

// As vnpu::RunOptions and vnpu::RunReport (vnpu/entry.h).
struct Options {
  int32_t threads = int32_t(knob("VNPU_THREADS", std::max(1u, std::thread::hardware_concurrency()))), record = 0;
  uint64_t seed = 0;
  int32_t races_are_notes = 0;
  int64_t max_events = knob("VNPU_RACE_EVENTS", 1 << 26);
  uint64_t garbage = 0;
  const void *interpreter = nullptr;
  int64_t stall = int64_t(60) * 1000000000;  // nanoseconds that a core may compute while nothing else goes on
  const void *traced = nullptr, *stops = nullptr;
};
struct Report {
  char *message = nullptr, *notes = nullptr, *record = nullptr, *writer = nullptr;
  int64_t nanoseconds = 0;
  void *raised[3] = {};
};

// What aiecc was told to call the sequences of a program, in their order: VNPU_KERNEL_NAMES, with commas between names.
inline std::vector<std::string> kernel_names() {
  const char *const given = getenv("VNPU_KERNEL_NAMES");
  std::string names = given ? given : "MLIR_AIE";
  std::vector<std::string> found;
  for (size_t comma; (comma = names.find(',')) != std::string::npos; names = names.substr(comma + 1)) {
    found.push_back(names.substr(0, comma));
  }
  found.push_back(names);
  return found;
}

// A loaded program. Its description is the JSON that `aerie vnpu build` has put into it.
class Program {
 public:
  explicit Program(const std::string &path) : path_(path) {
    char whole[PATH_MAX];
    handle_ = dlopen(realpath(path.c_str(), whole) ? whole : path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (!handle_) throw std::runtime_error(std::string(dlerror()) + ": build it with aerie vnpu build DESIGN.mlir -o " + path);
    const char *const text = static_cast<const char *>(dlsym(handle_, "vnpu_metadata"));
    if (!text) throw std::runtime_error(path + " is no program of the virtual NPU: build it with aerie vnpu build");
    read_entries(text);
  }
  Program(const Program &) = delete;  // it is never unloaded: its threads go on

  struct Entry {
    std::string name, symbol;
    std::vector<bool> is_number;   // of each argument
    bool has_scratchpad = false;  // as the last one
  };
  // The sequence of a name that may have a device's before it, as in "main:sequence"; else that whose kernel has the name,
  // or the first one.
  const Entry &entry(const std::string &name) const {
    const std::string last = name.substr(name.find(':') == std::string::npos ? 0 : name.find(':') + 1);
    for (const Entry &one : entries) {
      if (one.name == last) return one;
    }
    const std::vector<std::string> names = kernel_names();
    for (size_t i = 0; i < names.size() && i < entries.size(); ++i) {
      if (names[i] == name) return entries[i];
    }
    return entries.front();
  }
  void call(const Entry &entry, const std::vector<void *> &arguments) const {
    using Function = int (*)(void *const *, const Options *, Report *);
    const auto function = reinterpret_cast<Function>(dlsym(handle_, entry.symbol.c_str()));
    if (!function) throw std::runtime_error(path_ + " has no sequence " + entry.name);
    Options options;
    Report report;
    const int status = function(arguments.data(), &options, &report);
    if (report.notes) std::cerr << report.notes;
    if (status != 0) throw std::runtime_error(entry.name + ": " + (report.message ? report.message : "the run has failed"));
  }
  std::vector<Entry> entries;

 private:
  // {"format": ..., "entries": {NAME: {"symbol": SYMBOL, "arguments": [{...}, ...]}, ...}, ...}
  void read_entries(const char *text) {
    const std::string json = text, key = "{\"symbol\": \"";
    for (size_t at = json.find(key); at != std::string::npos; at = json.find(key, at + 1)) {
      Entry entry;
      const size_t colon = json.rfind("\": ", at), begin = json.rfind('"', colon - 1) + 1;
      entry.name = json.substr(begin, colon - begin);
      entry.symbol = json.substr(at + key.size(), json.find('"', at + key.size()) - at - key.size());
      const size_t next = json.find(key, at + 1), end = next == std::string::npos ? json.size() : next;
      const std::string shape = "\"shape\": [";
      for (size_t one = json.find(shape, at); one < end; one = json.find(shape, one + 1)) {
        entry.is_number.push_back(json[one + shape.size()] == ']');
      }
      entry.has_scratchpad = json.substr(at, end - at).find("\"scratchpad\": true") != std::string::npos;
      entries.push_back(entry);
    }
    if (entries.empty()) throw std::runtime_error(path_ + " has no sequence that a host could start");
  }
  std::string path_;
  void *handle_;
};

}  // namespace vnpu_host

namespace xrt {

class uuid {
 public:
  std::string path;
};

class xclbin {
 public:
  class kernel {
   public:
    explicit kernel(std::string name) : name_(std::move(name)) {}
    std::string get_name() const { return name_; }

   private:
    std::string name_;
  };
  xclbin() = default;
  explicit xclbin(const std::string &path) : path_(path) {}
  std::vector<kernel> get_kernels() const {
    std::vector<kernel> found;
    for (const std::string &name : vnpu_host::kernel_names()) found.emplace_back(name);
    return found;
  }
  uuid get_uuid() const { return {path_}; }

 private:
  std::string path_;
};

class elf {
 public:
  elf() = default;
  explicit elf(const std::string &path) : path(path) {}
  std::string path;
};

// Instructions apart from the xclbin, whose program has them.
class module {
 public:
  module() = default;
  explicit module(const elf &) {}
};

class device {
 public:
  device() = default;
  explicit device(unsigned int) {}
  uuid register_xclbin(const xclbin &binary) { return binary.get_uuid(); }
  uuid load_xclbin(const std::string &path) { return {path}; }
};

class hw_context {
 public:
  hw_context() = default;
  hw_context(const device &, const uuid &id) : program(std::make_shared<vnpu_host::Program>(id.path)) {}
  hw_context(const device &, const elf &file) : program(std::make_shared<vnpu_host::Program>(file.path)) {}
  std::shared_ptr<vnpu_host::Program> program;
};

// Memory that host and device share; sync has nothing to do.
class bo {
 public:
  enum class flags : uint32_t { normal = 0, cacheable = XCL_BO_FLAGS_CACHEABLE, host_only = XCL_BO_FLAGS_HOST_ONLY };
  bo() = default;
  template <class Flags = uint32_t>
  bo(const device &, size_t bytes, Flags = {}, uint32_t = 0) : bo(bytes) {}
  template <class Flags = uint32_t>
  bo(const hw_context &, size_t bytes, Flags = {}, uint32_t = 0) : bo(bytes) {}
  // A part of another one.
  bo(const bo &whole, size_t bytes, size_t offset) : data_(whole.data_, whole.data_.get() + offset), bytes_(bytes) {
    if (offset + bytes > whole.bytes_) throw std::runtime_error("a part of a buffer object leaves it");
  }
  size_t size() const { return bytes_; }
  uint64_t address() const { return uint64_t(reinterpret_cast<uintptr_t>(data_.get())); }
  template <class T = void *>
  T map() {
    return reinterpret_cast<T>(data_.get());
  }
  void sync(xclBOSyncDirection) {}
  void sync(xclBOSyncDirection, size_t, size_t) {}
  void write(const void *from) { write(from, bytes_, 0); }
  void write(const void *from, size_t bytes, size_t offset) { memcpy(part(bytes, offset), from, bytes); }
  void read(void *to) { read(to, bytes_, 0); }
  void read(void *to, size_t bytes, size_t offset) { memcpy(to, part(bytes, offset), bytes); }
  explicit operator bool() const { return bool(data_); }

 private:
  explicit bo(size_t bytes) : bytes_(bytes) {
    constexpr size_t kPage = 4096;
    void *const memory = aligned_alloc(kPage, (bytes + kPage - 1) / kPage * kPage + kPage);
    if (!memory) throw std::bad_alloc();
    memset(memory, 0, bytes);
    data_.reset(static_cast<char *>(memory), free);
  }
  char *part(size_t bytes, size_t offset) {
    if (offset + bytes > bytes_)
      throw std::runtime_error("reaches beyond a buffer object of " + std::to_string(bytes_) + " bytes");
    return data_.get() + offset;
  }
  std::shared_ptr<char> data_;
  size_t bytes_ = 0;
};

class run;

class kernel {
 public:
  kernel() = default;
  // Its arguments are an opcode, instructions, their number, then those of the sequence.
  kernel(const hw_context &context, const std::string &name) : program(context.program), name_(name) {}
  int group_id(int argument) const { return argument; }
  template <class... Arguments>
  run operator()(Arguments &&...arguments);
  const vnpu_host::Program::Entry &entry() const { return program->entry(name_); }
  std::shared_ptr<vnpu_host::Program> program;
  int first = 3;  // the argument that is the sequence's first

 private:
  std::string name_;
};

namespace ext {

class bo : public xrt::bo {
 public:
  bo(const device &device, size_t bytes) : xrt::bo(device, bytes) {}
  bo(const hw_context &context, size_t bytes) : xrt::bo(context, bytes) {}
};

// Of the ELF flow: its arguments are the sequence's alone. With a module they are as those of an xclbin.
class kernel : public xrt::kernel {
 public:
  kernel(const hw_context &context, const std::string &name) : xrt::kernel(context, name) { first = 0; }
  kernel(const hw_context &context, const module &, const std::string &name) : xrt::kernel(context, name) {}
};

}  // namespace ext

class run {
 public:
  run() = default;
  explicit run(const kernel &kernel) : kernel_(kernel) {
    constexpr size_t kScratchpad = 128;
    if (kernel_.entry().has_scratchpad) scratchpad_ = bo(device(), kScratchpad);
  }
  // What the host gives cores and descriptors of a run.
  bo get_ctrl_scratchpad_bo() const {
    if (!scratchpad_) throw std::runtime_error("the sequence has no scratchpad");
    return scratchpad_;
  }
  template <class T>
  void set_arg(int index, const T &value) {
    if constexpr (std::is_base_of_v<bo, T>) buffers_[index] = value;
    else if constexpr (std::is_integral_v<T> || std::is_enum_v<T>) numbers_[index] = int64_t(value);
  }
  void start() {
    const auto &entry = kernel_.entry();
    const std::vector<void *> arguments = all_arguments(entry);
    try {
      kernel_.program->call(entry, arguments);
      state_ = ERT_CMD_STATE_COMPLETED;
    } catch (const std::exception &error) {
      std::cerr << error.what() << "\n";
      state_ = ERT_CMD_STATE_TIMEOUT;
    }
  }
  ert_cmd_state wait() const { return state_; }
  template <class Time>
  ert_cmd_state wait(const Time &) const {
    return state_;
  }
  void wait2() const {
    if (state_ != ERT_CMD_STATE_COMPLETED) throw std::runtime_error("the run of a kernel has failed");
  }
  template <class Time>
  std::cv_status wait2(const Time &) const {
    wait2();
    return std::cv_status::no_timeout;
  }
  ert_cmd_state state() const { return state_; }

 private:
  // Whether the instructions are of a header that `aerie vnpu build` has written; then their numbers are kept.
  bool take_numbers() {
    constexpr uint32_t kMagic = 0x55504E56;
    if (kernel_.first == 0 || !buffers_.count(1) || buffers_[1].size() < sizeof(kMagic)) return false;
    const uint32_t *const words = buffers_[1].map<uint32_t *>();
    if (words[0] != kMagic) return false;
    numbers_held_.assign((buffers_[1].size() / sizeof(kMagic) - 1) / 2, 0);
    for (size_t i = 0; i < numbers_held_.size(); ++i) memcpy(&numbers_held_[i], words + 1 + 2 * i, sizeof(int64_t));
    return true;
  }
  // A host passes buffers alone, where the numbers are in its instructions.
  std::vector<void *> all_arguments(const vnpu_host::Program::Entry &entry) {
    const bool holds_numbers = take_numbers();
    std::vector<void *> all;
    size_t number = 0;
    const int given = int(entry.is_number.size()) - int(entry.has_scratchpad);
    for (int i = 0; i < given; ++i) {
      if (!holds_numbers || !entry.is_number[size_t(i)]) all.push_back(address(kernel_.first + i - int(number), i));
      else if (number < numbers_held_.size()) all.push_back(&numbers_held_[number++]);
      else throw std::runtime_error("the instructions lack the sequence's argument " + std::to_string(i));
    }
    if (entry.has_scratchpad) all.push_back(scratchpad_.map());
    return all;
  }
  void *address(int index, int number) {
    if (buffers_.count(index)) return buffers_[index].template map<void *>();
    if (numbers_.count(index)) return &numbers_[index];
    throw std::runtime_error("the sequence's argument " + std::to_string(number) + " has not been set");
  }
  kernel kernel_;
  bo scratchpad_;
  std::map<int, bo> buffers_;
  std::map<int, int64_t> numbers_;
  std::vector<int64_t> numbers_held_;
  ert_cmd_state state_ = ERT_CMD_STATE_NEW;
};

template <class... Arguments>
run kernel::operator()(Arguments &&...arguments) {
  run made(*this);
  int index = 0;
  (made.set_arg(index++, std::decay_t<Arguments>(arguments)), ...);
  made.start();
  return made;
}

class runlist {
 public:
  explicit runlist(const hw_context &) {}
  void add(const run &one) { runs_.push_back(one); }
  void execute() {
    for (run &one : runs_) one.start();
  }
  void wait() {
    for (const run &one : runs_) one.wait2();
  }

 private:
  std::vector<run> runs_;
};

}  // namespace xrt
