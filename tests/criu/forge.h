// Changes the credentials of threads in CRIU's images, as a process could that writes into the
// program while CRIU's code runs there.
#pragma once

#include <filesystem>
#include <string>

namespace gcr::criu::test {

/// Sets `field` ("uid", "group", "capability", "bounding", "no_new_privs", "securebits") in every
/// core-*.img of `directory`. Throws std::runtime_error if there is none, or no such field.
void forge_credentials(const std::filesystem::path& directory, const std::string& field);

}  // namespace gcr::criu::test
