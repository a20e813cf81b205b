// An undisturbed copy of a program, for comparison with its lines.
#pragma once

#include <cstddef>
#include <functional>
#include <string>

#include "tests/e2e/two_hosts.h"
#include "tests/fault/program.h"

namespace gcr::fault::test {

/// Starts the program's command on the same machine, in its own namespaces, without the library,
/// and waits for its first line. It runs as long as the returned function lives, which returns its
/// lines, one after the other, and waits for the next one if necessary. Throws std::runtime_error
/// if none comes, as the returned function does. The hosts have to outlive it.
std::function<std::string()> run_undisturbed(const e2e::TwoHosts& hosts, const Program& program);

}  // namespace gcr::fault::test
