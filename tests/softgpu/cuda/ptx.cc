// Parses the declarations of a PTX text: entries with their parameters, variables with their
// initial values. Instructions are skipped.
#include "tests/softgpu/cuda/ptx.h"

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tests/softgpu/cuda/face.h"
#include "tests/softgpu/engine/text.h"

namespace gcr::softgpu {
namespace {

/// ".u64" is 8 bytes; 0 for a token that is no type.
std::size_t type_bytes(const std::string& token) {
  if (token.size() < 3 || token[0] != '.' || std::strchr("usfb", token[1]) == nullptr) return 0;
  char* end = nullptr;
  const unsigned long bits = std::strtoul(token.c_str() + 2, &end, 10);
  return *end == '\0' ? bits / 8 : 0;
}

struct Declaration {
  std::string name;
  std::size_t element_bytes = 0;
  std::size_t elements = 1;
  std::size_t alignment = 0;
  bool managed = false;
};

class Parser {
 public:
  explicit Parser(std::vector<std::string> tokens) : tokens_(std::move(tokens)) {}

  Image parse() {
    Image text;
    int depth = 0;
    while (at_ < tokens_.size()) {
      const std::string& token = tokens_[at_++];
      if (token == "{") ++depth;
      if (token == "}") --depth;
      if (depth != 0) continue;
      if (token == ".entry") text.entries.push_back(entry());
      if (token == ".global" || token == ".const") text.variables.push_back(variable());
    }
    return text;
  }

 private:
  bool next_is(const char* token) const { return at_ < tokens_.size() && tokens_[at_] == token; }
  bool ended() const { return at_ >= tokens_.size(); }

  /// Type, alignment, name and array size, up to (not including) "=", ";", "," or ")".
  Declaration declaration() {
    Declaration result;
    while (!ended() && !next_is("=") && !next_is(";") && !next_is(",") && !next_is(")")) {
      const std::string& token = tokens_[at_++];
      if (token == ".attribute") {
        for (; !ended() && !next_is(")"); ++at_) result.managed |= next_is(".managed");
        if (!ended()) ++at_;
      } else if (token == ".align" && !ended()) {
        result.alignment = std::strtoul(tokens_[at_++].c_str(), nullptr, 10);
      } else if (token == "[") {
        if (!next_is("]") && !ended()) {
          result.elements *= std::strtoul(tokens_[at_++].c_str(), nullptr, 0);
        }
      } else if (type_bytes(token) != 0) {
        result.element_bytes = type_bytes(token);
      } else if (token[0] != '.' && token != "]") {
        result.name = token;
      }
    }
    return result;
  }

  ImageKernel entry() {
    ImageKernel result;
    if (!ended()) result.name = tokens_[at_++];
    if (!next_is("(")) return result;
    ++at_;
    while (!ended() && !next_is(")")) {
      const Declaration parameter = declaration();
      result.add_parameter(parameter.element_bytes * parameter.elements,
                           std::max(parameter.element_bytes, parameter.alignment));
      if (next_is(",")) ++at_;
    }
    return result;
  }

  ImageVariable variable() {
    const Declaration declared = declaration();
    ImageVariable result{
        declared.name, declared.element_bytes * declared.elements, {}, declared.managed};
    if (!next_is("=")) return result;
    for (++at_; !ended() && !next_is(";"); ++at_) {
      const std::string& token = tokens_[at_];
      if (std::isdigit(static_cast<unsigned char>(token[0])) == 0 && token[0] != '-') continue;
      const auto value = static_cast<std::uint64_t>(std::strtoull(token.c_str(), nullptr, 0));
      const auto* bytes = reinterpret_cast<const std::uint8_t*>(&value);
      result.initial.insert(result.initial.end(), bytes, bytes + declared.element_bytes);
    }
    return result;
  }

  std::vector<std::string> tokens_;
  std::size_t at_ = 0;
};

/// The declarations in a PTX text; none if it is not one.
std::optional<Image> parse(std::string_view text) {
  const std::string clean = without_comments(text);
  if (clean.find(".version") == std::string::npos || clean.find(".target") == std::string::npos) {
    return std::nullopt;
  }
  return Parser(tokens_of(clean, "._$%-")).parse();
}

constexpr std::uint32_t kElf = 0x464c457f;
constexpr std::uint32_t kFatbin = 0xba55ed50;
constexpr std::uint32_t kFatbinWrapper = 0x466243b1;

}  // namespace

CUresult read_image(const void* image, Image* result) {
  if (image == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const auto* characters = static_cast<const char*>(image);
  if (::strnlen(characters, 4) == 4) {
    std::uint32_t magic = 0;
    std::memcpy(&magic, image, sizeof(magic));
    if (magic == kElf || magic == kFatbin || magic == kFatbinWrapper) {
      return CUDA_ERROR_NO_BINARY_FOR_GPU;
    }
  }
  auto parsed = parse(characters);
  if (!parsed) return CUDA_ERROR_INVALID_IMAGE;
  *result = std::move(*parsed);
  return result->check();
}

}  // namespace gcr::softgpu
