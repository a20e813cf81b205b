// Reads what a PTX text declares: entries with their parameters, variables with their initial
// values. Instructions are skipped.
#include <cctype>
#include <cstdlib>
#include <cstring>

#include "tests/softgpu/module.h"

namespace gcr::softgpu {
namespace {

std::string without_comments(std::string_view text) {
  std::string clean;
  clean.reserve(text.size());
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text.substr(i, 2) == "//") {
      while (i < text.size() && text[i] != '\n') ++i;
      clean += '\n';
    } else if (text.substr(i, 2) == "/*") {
      const std::size_t end = text.find("*/", i + 2);
      if (end == std::string_view::npos) break;
      i = end + 1;
      clean += ' ';
    } else {
      clean += text[i];
    }
  }
  return clean;
}

bool is_word(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) != 0 || std::strchr("._$%-", c) != nullptr;
}

std::vector<std::string> tokens_of(const std::string& text) {
  std::vector<std::string> tokens;
  for (std::size_t i = 0; i < text.size();) {
    if (std::isspace(static_cast<unsigned char>(text[i])) != 0 || text[i] == '\0') {
      ++i;
      continue;
    }
    std::size_t end = i + 1;
    if (is_word(text[i])) {
      while (end < text.size() && text[end] != '\0' && is_word(text[end])) ++end;
    }
    tokens.push_back(text.substr(i, end - i));
    i = end;
  }
  return tokens;
}

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
};

class Parser {
 public:
  explicit Parser(std::vector<std::string> tokens) : tokens_(std::move(tokens)) {}

  PtxText parse() {
    PtxText text;
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
      if (token == ".align" && !ended()) {
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

  PtxEntry entry() {
    PtxEntry result;
    if (!ended()) result.name = tokens_[at_++];
    if (!next_is("(")) return result;
    ++at_;
    std::size_t offset = 0;
    while (!ended() && !next_is(")")) {
      const Declaration parameter = declaration();
      const std::size_t alignment = std::max(parameter.element_bytes, parameter.alignment);
      if (alignment != 0) offset = (offset + alignment - 1) / alignment * alignment;
      const std::size_t bytes = parameter.element_bytes * parameter.elements;
      if (bytes != 0) result.parameters.push_back({offset, bytes});
      offset += bytes;
      if (next_is(",")) ++at_;
    }
    return result;
  }

  PtxVariable variable() {
    const Declaration declared = declaration();
    PtxVariable result{declared.name, declared.element_bytes * declared.elements, {}};
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

}  // namespace

std::optional<PtxText> parse_ptx(std::string_view text) {
  const std::string clean = without_comments(text);
  if (clean.find(".version") == std::string::npos || clean.find(".target") == std::string::npos) {
    return std::nullopt;
  }
  return Parser(tokens_of(clean)).parse();
}

}  // namespace gcr::softgpu
