// Parsing program texts, for the faces' kernels.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace gcr::softgpu {

/// The text without C++ comments; lines stay lines.
std::string without_comments(std::string_view text);
/// Its words, of letters, digits and `word_signs`, and every other character except space by
/// itself.
std::vector<std::string> tokens_of(const std::string& text, std::string_view word_signs);

}  // namespace gcr::softgpu
