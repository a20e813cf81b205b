// What a container sees of its files, as lines that a test compares. Written apart from the code
// under test. Mount points are left out.
#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <vector>

namespace gcr::layer::test {

/// Type, owner, permissions, times, attributes, content and names of each file, by path. The
/// content of holes counts as zeros.
using Listing = std::map<std::string, std::string>;
Listing listing_of(const std::filesystem::path& root);

/// A line for each path that only one has, or that differs.
std::vector<std::string> differences(const Listing& source, const Listing& destination);

}  // namespace gcr::layer::test
