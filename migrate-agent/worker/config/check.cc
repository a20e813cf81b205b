#include "migrate-agent/worker/config/check.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <asio/io_context.hpp>
#include <asio/ip/tcp.hpp>
#include <cerrno>
#include <cstdlib>
#include <system_error>

#include "migrate-agent/worker/config/certificates.h"
#include "src/base/users.h"
#include "src/control/wire.h"

namespace gcr::worker {
namespace {

namespace fs = std::filesystem;
using asio::ip::tcp;

std::string reason(int error_number) { return std::generic_category().message(error_number); }

using Problems = std::vector<std::string>;

/// Checks that a directory exists or can be created when the agent starts.
void check_directory(Problems& problems, const char* key, const fs::path& path) {
  std::error_code error;
  fs::path there = path;
  while (!fs::exists(there, error) && there.has_relative_path()) there = there.parent_path();
  if (!fs::is_directory(there, error)) {
    return problems.push_back(fmt::format("{}: {} is not a directory", key, there.string()));
  }
  if (::access(there.c_str(), W_OK | X_OK) != 0) {
    problems.push_back(
        fmt::format("{}: cannot write to {}: {}", key, there.string(), reason(errno)));
  }
}

bool is_program(const fs::path& path) {
  std::error_code error;
  return fs::is_regular_file(path, error) && ::access(path.c_str(), X_OK) == 0;
}

/// Returns whether execvp(3) would find the program.
bool is_found(const std::string& program) {
  if (program.find('/') != std::string::npos) return is_program(program);
  const char* path = std::getenv("PATH");
  std::string_view rest = path == nullptr ? "/usr/bin:/bin" : path;
  for (;;) {
    const std::size_t end = std::min(rest.find(':'), rest.size());
    if (is_program(fs::path(rest.substr(0, end)) / program)) return true;
    if (end == rest.size()) return false;
    rest.remove_prefix(end + 1);
  }
}

void check_program(Problems& problems, const char* key, const std::string& program) {
  if (is_found(program)) return;
  problems.push_back(fmt::format("{}: there is no program {}", key, program));
}

void check_slurm(Problems& problems, const slurm::Settings& slurm) {
  std::error_code error;
  if (!fs::is_directory(slurm.spool, error)) {
    problems.push_back(fmt::format("slurm.spool: {} is not a directory", slurm.spool.string()));
  }
  if (!fs::is_regular_file(slurm.library, error)) {
    problems.push_back(fmt::format("slurm.library: there is no file {}", slurm.library.string()));
  }
  check_directory(problems, "slurm.folder", slurm.folder);
  check_program(problems, "criu.reaper", slurm.adopter);
}

/// Checks that this host has the address: binds any free port of it for a moment.
void check_address(Problems& problems, const char* key, const std::string& host) {
  asio::io_context io;
  std::error_code error;
  const auto found = tcp::resolver(io).resolve(host, "0", tcp::resolver::passive, error);
  if (!error && !found.empty()) {
    tcp::socket socket(io);
    const tcp::endpoint endpoint = found.begin()->endpoint();
    socket.open(endpoint.protocol(), error);
    if (!error) socket.bind(endpoint, error);
  }
  if (error) problems.push_back(fmt::format("{}: {}: {}", key, host, error.message()));
}

void check_advertised(Problems& problems, const std::string& host) {
  asio::io_context io;
  std::error_code error;
  tcp::resolver(io).resolve(host, "0", error);
  if (error) problems.push_back(fmt::format("advertise: {}: {}", host, error.message()));
}

void check_users(Problems& problems, const OperatorRule& rule) {
  for (const std::string& user : rule.users) {
    if (user == "*" || user_id(user)) continue;
    problems.push_back(
        fmt::format("operators: \"{}\" may move the processes of \"{}\", but this "
                    "host has no such user",
                    control::printable(rule.name), control::printable(user)));
  }
}

}  // namespace

std::vector<std::string> problems_of(const Config& config) {
  Problems problems;
  const auto advertised = control::Endpoint::parse(config.advertise);
  const std::string host = advertised ? advertised->host : std::string();
  if (const Status valid = check_own_certificate(config.tls, host); !valid) {
    problems.push_back(valid.error().message());
  }
  check_directory(problems, "state_dir", config.state_dir);
  check_directory(problems, "runtime_dir", config.runtime_dir);
  const std::pair<const char*, const fs::path&> files[] = {{"local_socket", config.local_socket},
                                                           {"audit_log", config.audit_log}};
  for (const auto& [key, path] : files) {
    if (!path.empty()) check_directory(problems, key, path.parent_path());
  }
  check_program(problems, "criu.command", config.criu.argv.front());
  check_program(problems, "criu.reaper", config.criu.reaper);
  for (const char* companion : {"gcr-keeper", "gcr-in-criu.so"}) {
    check_program(problems, "criu.reaper", config.criu.reaper.parent_path() / companion);
  }
  if (config.slurm.is_set()) check_slurm(problems, config.slurm);
  check_address(problems, "listen", config.listen.host);
  if (config.metrics_listen) check_address(problems, "metrics_listen", config.metrics_listen->host);
  for (const std::string& address : config.data_addresses) {
    check_address(problems, "data_addresses", address);
  }
  if (!host.empty()) check_advertised(problems, host);
  for (const OperatorRule& rule : config.operators) check_users(problems, rule);
  return problems;
}

std::vector<std::string> warnings_of(const Config& config) {
  struct stat info {};
  if (::stat(config.tls.key.c_str(), &info) != 0) return {};
  if ((info.st_mode & (S_IRWXG | S_IRWXO)) == 0) return {};
  return {
      fmt::format("tls.key: {} has mode {:o}, so that other users than its owner have rights to "
                  "it: chmod 600 {}",
                  config.tls.key, info.st_mode & 07777, config.tls.key)};
}

}  // namespace gcr::worker
