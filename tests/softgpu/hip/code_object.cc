#include "tests/softgpu/hip/code_object.h"

#include <fmt/format.h>

#include <cstring>
#include <sstream>
#include <string_view>

namespace gcr::softgpu::hip {
namespace {

constexpr std::string_view kFirstLine = "software GPU code object\n";
constexpr std::string_view kElf = "\177ELF";
constexpr std::string_view kOffloadBundle = "__CLANG_OFFLOAD_BUNDLE__";

bool begins_with(const void* code, std::string_view text) {
  return std::strncmp(static_cast<const char*>(code), text.data(), text.size()) == 0;
}

ImageKernel read_kernel(std::istringstream& line) {
  ImageKernel kernel;
  line >> kernel.name;
  std::size_t bytes = 0;
  while (line >> bytes) kernel.add_parameter(bytes, bytes);
  return kernel;
}

ImageVariable read_variable(std::istringstream& line) {
  ImageVariable variable;
  line >> variable.name >> variable.bytes >> std::hex;
  unsigned byte = 0;
  while (line >> byte) variable.initial.push_back(static_cast<std::uint8_t>(byte));
  return variable;
}

}  // namespace

std::string write_code(const Image& image) {
  std::string code(kFirstLine);
  for (const ImageKernel& kernel : image.entries) {
    code += "kernel " + kernel.name;
    for (const ImageParameter& parameter : kernel.parameters) {
      code += fmt::format(" {}", parameter.bytes);
    }
    code += '\n';
  }
  for (const ImageVariable& variable : image.variables) {
    code += fmt::format("variable {} {}", variable.name, variable.bytes);
    for (const std::uint8_t byte : variable.initial) code += fmt::format(" {:x}", byte);
    code += '\n';
  }
  return code;
}

Result read_code(const void* code, Image* image) {
  if (code == nullptr) return Result::kInvalidValue;
  if (begins_with(code, kElf) || begins_with(code, kOffloadBundle)) return Result::kNoBinaryForGpu;
  if (!begins_with(code, kFirstLine)) return Result::kInvalidImage;
  std::istringstream lines(static_cast<const char*>(code) + kFirstLine.size());
  std::string text;
  while (std::getline(lines, text)) {
    std::istringstream line(text);
    std::string what;
    line >> what;
    if (what == "kernel") image->entries.push_back(read_kernel(line));
    if (what == "variable") image->variables.push_back(read_variable(line));
  }
  return image->check();
}

}  // namespace gcr::softgpu::hip
