// A copy of a program that nobody disturbs: what its lines are compared with.
#pragma once

#include <cstddef>
#include <functional>
#include <string>

#include "tests/e2e/two_hosts.h"
#include "tests/fault/program.h"

namespace gcr::fault::test {

/// Starts the program's command beside the hosts, in namespaces of its own, without the library,
/// and waits for its first line; it runs as long as what is returned lives, which gives its lines,
/// one after the other, and waits for one that is not there yet. Throws std::runtime_error if none
/// comes, as what is returned does. The hosts have to outlive it.
std::function<std::string()> run_undisturbed(const e2e::TwoHosts& hosts, const Program& program);

}  // namespace gcr::fault::test
