#include "tests/softgpu/engine/text.h"

#include <cctype>

namespace gcr::softgpu {

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

std::vector<std::string> tokens_of(const std::string& text, std::string_view word_signs) {
  const auto is_word = [&](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) != 0 ||
           word_signs.find(c) != std::string_view::npos;
  };
  std::vector<std::string> tokens;
  for (std::size_t i = 0; i < text.size();) {
    if (std::isspace(static_cast<unsigned char>(text[i])) != 0 || text[i] == '\0') {
      ++i;
      continue;
    }
    std::size_t end = i + 1;
    if (is_word(text[i])) {
      while (end < text.size() && is_word(text[end])) ++end;
    }
    tokens.push_back(text.substr(i, end - i));
    i = end;
  }
  return tokens;
}

}  // namespace gcr::softgpu
