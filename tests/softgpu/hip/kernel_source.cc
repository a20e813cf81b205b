#include "tests/softgpu/hip/kernel_source.h"

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <iterator>
#include <map>
#include <span>
#include <sstream>

#include "tests/softgpu/engine/text.h"

namespace gcr::softgpu::hip {
namespace {

using Tokens = std::vector<std::string>;
using TokenSpan = std::span<const std::string>;

constexpr std::string_view kWordSigns = "_:";

bool is_name(const std::string& token) {
  return std::isalpha(static_cast<unsigned char>(token[0])) != 0 || token[0] == '_';
}

/// The position after the bracket that closes the one at `open`.
std::size_t behind(TokenSpan tokens, std::size_t open) {
  int depth = 0;
  for (std::size_t at = open; at < tokens.size(); ++at) {
    if (tokens[at] == "(" || tokens[at] == "{" || tokens[at] == "[") ++depth;
    if (tokens[at] == ")" || tokens[at] == "}" || tokens[at] == "]") --depth;
    if (depth == 0) return at + 1;
  }
  return tokens.size();
}

struct Macro {
  bool takes_arguments = false;
  Tokens body;
};

/// Expands macros; the definitions stay for later texts.
class Preprocessor {
 public:
  Tokens run(std::string_view text) {
    std::istringstream lines(without_comments(text));
    std::string line;
    std::string code;
    while (std::getline(lines, line)) {
      std::string more;
      while (line.ends_with('\\') && std::getline(lines, more)) {
        line.back() = ' ';
        line += more;
      }
      const std::size_t first = line.find_first_not_of(" \t");
      if (first != std::string::npos && line[first] == '#') {
        define(line.substr(first + 1));
      } else {
        code += line + '\n';
      }
    }
    return expand(tokens_of(code, kWordSigns), 0);
  }

 private:
  static constexpr int kDeepest = 16;  ///< macros in macros

  void define(const std::string& directive) {
    std::istringstream words(directive);
    std::string what;
    std::string name;
    if (!(words >> what) || what != "define" || !(words >> std::ws)) return;
    while (std::isalnum(words.peek()) != 0 || words.peek() == '_') {
      name += static_cast<char>(words.get());
    }
    Macro macro;
    macro.takes_arguments = words.peek() == '(';
    std::string rest;
    std::getline(words, rest);
    if (macro.takes_arguments) rest.erase(0, rest.find(')') + 1);
    macro.body = tokens_of(rest, kWordSigns);
    macros_[name] = macro;
  }

  Tokens expand(const Tokens& tokens, int depth) const {
    Tokens expanded;
    for (std::size_t at = 0; at < tokens.size(); ++at) {
      const auto found = macros_.find(tokens[at]);
      const bool called = at + 1 < tokens.size() && tokens[at + 1] == "(";
      if (found == macros_.end() || depth == kDeepest ||
          (found->second.takes_arguments && !called)) {
        expanded.push_back(tokens[at]);
        continue;
      }
      std::ranges::copy(expand(found->second.body, depth + 1), std::back_inserter(expanded));
      if (found->second.takes_arguments) at = behind(tokens, at + 1) - 1;
    }
    return expanded;
  }

  std::map<std::string, Macro> macros_;
};

using TypeSizes = std::map<std::string, std::size_t>;

const TypeSizes kTypeSizes{
    {"bool", 1},    {"char", 1},     {"int8_t", 1},    {"uint8_t", 1},  {"short", 2},
    {"int16_t", 2}, {"uint16_t", 2}, {"int", 4},       {"unsigned", 4}, {"float", 4},
    {"int32_t", 4}, {"uint32_t", 4}, {"long", 8},      {"double", 8},   {"size_t", 8},
    {"int64_t", 8}, {"uint64_t", 8}, {"uintptr_t", 8}, {"intptr_t", 8},
};

class Reader {
 public:
  explicit Reader(Tokens tokens) : tokens_(std::move(tokens)) {}

  KernelSource read() {
    while (at_ < tokens_.size()) {
      const std::string& token = tokens_[at_++];
      if (token == "using") {
        read_alias();
        continue;
      }
      const TokenSpan attributes = token == "__attribute__" ? bracketed() : TokenSpan();
      const auto matches = [&](std::string_view keyword, std::string_view attribute) {
        return token == keyword || std::ranges::find(attributes, attribute) != attributes.end();
      };
      if (matches("__global__", "global")) {
        read_kernel();
      } else if (matches("__device__", "device") || matches("__constant__", "constant")) {
        read_variable();
      }
    }
    return std::move(source_);
  }

 private:
  TokenSpan all() const { return tokens_; }

  /// The content of the brackets that begin here; skips it.
  TokenSpan bracketed() {
    const std::size_t begin = at_;
    at_ = behind(all(), at_);
    return all().subspan(begin, at_ - begin);
  }

  /// 0: an unknown type.
  std::size_t bytes_of_type(TokenSpan type) const {
    if (std::ranges::find(type, "*") != type.end()) return sizeof(void*);
    std::size_t bytes = 0;
    for (std::string word : type) {
      if (word == "const" || word == "volatile" || word == "signed") continue;
      if (const std::size_t scope = word.rfind(':'); scope != std::string::npos) {
        word.erase(0, scope + 1);
      }
      const auto found = sizes_.find(word);
      if (found == sizes_.end()) return 0;
      // "unsigned long long int": the words other than "int" and "unsigned" decide.
      if (bytes == 0 || (word != "int" && word != "unsigned")) bytes = found->second;
    }
    return bytes;
  }

  /// After "using": "<name> = <type>;", if it is that.
  void read_alias() {
    if (at_ + 1 >= tokens_.size() || tokens_[at_ + 1] != "=") return;
    const TokenSpan rest = all().subspan(at_ + 2);
    const TokenSpan type =
        rest.first(static_cast<std::size_t>(std::ranges::find(rest, ";") - rest.begin()));
    if (const std::size_t bytes = bytes_of_type(type)) sizes_[tokens_[at_]] = bytes;
  }

  void read_kernel() {
    ImageKernel kernel;
    while (at_ < tokens_.size()) {
      const std::string& token = tokens_[at_++];
      if (token == "__launch_bounds__" || token == "__attribute__") {
        bracketed();
      } else if (token == "(") {
        break;
      } else {
        kernel.name = token;
      }
    }
    const std::size_t end = std::max(behind(all(), at_ - 1), at_ + 1) - 1;
    read_parameters(all().subspan(at_, end - at_), &kernel);
    at_ = end + 1;
    source_.image.entries.push_back(std::move(kernel));
  }

  void read_parameters(TokenSpan text, ImageKernel* kernel) {
    if (text.size() == 1 && text.front() == "void") return;
    while (!text.empty()) {
      const auto comma = static_cast<std::size_t>(std::ranges::find(text, ",") - text.begin());
      TokenSpan one = text.first(comma);
      text = text.subspan(std::min(comma + 1, text.size()));
      if (one.size() > 1 && is_name(one.back()) && bytes_of_type(one) == 0) {
        one = one.first(one.size() - 1);  // its name
      }
      const std::size_t bytes = bytes_of_type(one);
      if (bytes == 0) {
        source_.errors += kernel->name + ": a parameter's type is not known\n";
        return;
      }
      kernel->add_parameter(bytes, bytes);
    }
  }

  /// If it is a variable and no function: "<type> <name> = <number>;".
  void read_variable() {
    const std::size_t begin = at_;
    while (at_ < tokens_.size() && tokens_[at_] != ";" && tokens_[at_] != "=") {
      if (tokens_[at_] == "(" || tokens_[at_] == "{") return;
      ++at_;
    }
    if (at_ >= tokens_.size() || at_ - begin < 2) return;
    const TokenSpan type = all().subspan(begin, at_ - begin - 1);
    ImageVariable variable{tokens_[at_ - 1], bytes_of_type(type), {}};
    if (variable.bytes == 0) {
      source_.errors += variable.name + ": its type is not known\n";
      return;
    }
    if (tokens_[at_] == "=" && at_ + 1 < tokens_.size()) {
      const std::uint64_t value = std::strtoull(tokens_[at_ + 1].c_str(), nullptr, 0);
      const auto* bytes = reinterpret_cast<const std::uint8_t*>(&value);
      variable.initial.assign(bytes, bytes + variable.bytes);
    }
    source_.image.variables.push_back(std::move(variable));
  }

  Tokens tokens_;
  std::size_t at_ = 0;
  TypeSizes sizes_ = kTypeSizes;
  KernelSource source_;
};

}  // namespace

KernelSource read_source(const std::vector<std::string_view>& texts) {
  Preprocessor preprocessor;
  Tokens tokens;
  for (const std::string_view text : texts) {
    std::ranges::copy(preprocessor.run(text), std::back_inserter(tokens));
  }
  return Reader(std::move(tokens)).read();
}

}  // namespace gcr::softgpu::hip
