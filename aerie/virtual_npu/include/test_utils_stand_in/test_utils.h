// The functions of mlir-aie's test_utils library (runtime_lib/test_lib) that hosts of mlir-air's examples call, in a header.
//
// Needs cxxopts.hpp (Debian: libcxxopts-dev), as mlir-aie's own does.
#pragma once

#include <assert.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <iomanip>
#include <iostream>
#include <iterator>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "cxxopts.hpp"

namespace test_utils {

// Throws std::runtime_error where the option is missing, or names no file.
inline void check_arg_file_exists(const cxxopts::ParseResult &result, std::string name) {
  if (!result.count(name)) throw std::runtime_error("the option --" + name + " is missing");
  const std::string path = result[name].as<std::string>();
  if (!std::filesystem::exists(path)) throw std::runtime_error("--" + name + " " + path + ": there is no such file");
}

// Reads the command line. Ends the process after --help and after an option that is not known, or names no program.
inline void parse_options(int argc, const char *argv[], cxxopts::Options &options, cxxopts::ParseResult &result) {
  try {
    result = options.parse(argc, argv);
    if (!result.count("help")) {
      for (const char *name : {"xclbin", "instr"}) check_arg_file_exists(result, name);
      return;
    }
  } catch (const std::exception &error) {
    std::cerr << "error: " << error.what() << "\n";
  }
  std::cerr << options.help() << "\n";
  exit(1);
}

// The words of a file of instructions, 4 bytes each. Throws std::runtime_error.
inline std::vector<uint32_t> load_instr_binary(std::string path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw std::runtime_error(path + " cannot be read");
  const std::string bytes{std::istreambuf_iterator<char>(file), {}};
  if (bytes.size() % 4 != 0) {
    throw std::runtime_error(path + " has " + std::to_string(bytes.size()) + " bytes: instructions have 4 each");
  }
  std::vector<uint32_t> words(bytes.size() / 4);
  memcpy(words.data(), bytes.data(), bytes.size());
  return words;
}

}  // namespace test_utils
