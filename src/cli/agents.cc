#include "src/cli/agents.h"

#include <fmt/format.h>
#include <toml++/toml.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <asio/co_spawn.hpp>
#include <asio/io_context.hpp>
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <vector>

namespace gcr::cli {
namespace {

using control::AgentAddress;
using control::Endpoint;
using control::TlsFiles;
using std::filesystem::path;

constexpr std::chrono::seconds kTimeout{10};
constexpr const char* kSystemFolder = "/etc/gcr-migrate";

struct TlsKey {
  std::string_view key;  ///< in hosts.toml
  std::string TlsFiles::*file;
};
constexpr std::array kTlsKeys{TlsKey{"ca", &TlsFiles::authority},
                              TlsKey{"cert", &TlsFiles::certificate}, TlsKey{"key", &TlsFiles::key},
                              TlsKey{"crl", &TlsFiles::revoked}};

/// Fills in the files that `files` lacks from `others`.
void complete(TlsFiles& files, const TlsFiles& others) {
  for (const TlsKey& row : kTlsKeys) {
    if ((files.*row.file).empty()) files.*row.file = others.*row.file;
  }
}

/// Returns the configuration folders; the user's own comes first.
std::vector<path> folders() {
  const char* config = std::getenv("XDG_CONFIG_HOME");
  const char* home = std::getenv("HOME");
  if (config != nullptr && *config == '/') return {path(config) / "gcr-migrate", kSystemFolder};
  if (home == nullptr || *home != '/') return {kSystemFolder};
  return {path(home) / ".config" / "gcr-migrate", kSystemFolder};
}

/// Returns the first folder that has the file; if none has it, the system's.
path folder_with(const char* file) {
  std::error_code ignored;
  const auto all = folders();
  const auto found = std::ranges::find_if(
      all, [&](const path& one) { return std::filesystem::exists(one / file, ignored); });
  return found == all.end() ? path(kSystemFolder) : *found;
}

TlsFiles default_files() {
  const path folder = folder_with("operator.crt");
  return {folder / "ca.crt", folder / "operator.crt", folder / "operator.key"};
}

Error wrong(const std::string& file, const toml::node& node, const std::string& what) {
  return Error(Code::kInvalidArgument,
               fmt::format("{}:{}: {}", file, node.source().begin.line, what));
}

Result<std::string> text_of(const std::string& file, const toml::node& node,
                            const std::string& name) {
  const auto text = node.value_exact<std::string>();
  if (text && !text->empty()) return *text;
  return wrong(file, node, name + " must be a string that is not empty");
}

Result<Endpoint> endpoint_of(const std::string& file, const toml::node& node,
                             const std::string& name) {
  GCR_ASSIGN(const std::string text, text_of(file, node, name));
  auto endpoint = Endpoint::parse(text);
  if (!endpoint) return wrong(file, node, fmt::format("{}: {}", name, endpoint.error().message()));
  return endpoint;
}

Result<NamedAgent> read_host(const std::string& file, const toml::node& node,
                             const std::string& name) {
  NamedAgent host;
  const toml::table* table = node.as_table();
  if (table == nullptr) {
    GCR_ASSIGN(host.endpoint, endpoint_of(file, node, name));
    return host;
  }
  for (const auto& [key, entry] : *table) {
    const std::string full = name + "." + std::string(key.str());
    const auto row = std::ranges::find(kTlsKeys, key.str(), &TlsKey::key);
    if (row != kTlsKeys.end()) {
      GCR_ASSIGN(host.tls.*row->file, text_of(file, entry, full));
    } else if (key == "agent") {
      GCR_ASSIGN(host.endpoint, endpoint_of(file, entry, full));
    } else {
      return wrong(file, entry, full + " is not known; a host has agent, ca, cert, key and crl");
    }
  }
  if (!table->contains("agent")) return wrong(file, *table, name + " has no agent");
  return host;
}

/// Reads every host of the file, so that a mistake is noticed before its host is needed.
Result<std::optional<NamedAgent>> find_in(const std::string& file, const std::string& text,
                                          const std::string& name) {
  try {
    std::optional<NamedAgent> found;
    for (const auto& [key, node] : toml::parse(text, file)) {
      GCR_ASSIGN(NamedAgent host, read_host(file, node, std::string(key.str())));
      if (key == name) found = std::move(host);
    }
    return found;
  } catch (const toml::parse_error& error) {
    return Error(Code::kInvalidArgument,
                 fmt::format("{}:{}: {}", file, error.source().begin.line, error.description()));
  }
}

/// Returns the entry for this name in the first file that has it; none if no file has it.
Result<std::optional<NamedAgent>> find_host(const std::string& name) {
  for (const path& folder : folders()) {
    const path hosts = folder / "hosts.toml";
    std::ifstream file(hosts);
    if (!file && (errno == ENOENT || errno == ENOTDIR)) continue;
    std::ostringstream text;
    if (file) text << file.rdbuf();
    if (!file) {
      return Error(Code::kInvalidArgument,
                   Error::from_errno(errno, "cannot read " + hosts.string()).message());
    }
    GCR_ASSIGN(auto found, find_in(hosts.string(), text.str(), name));
    if (found) return found;
  }
  return std::optional<NamedAgent>();
}

}  // namespace

void describe_authority(CLI::App& app, TlsFiles& tls) {
  app.add_option("--ca", tls.authority, "The authority's certificate (default: ca.crt)")
      ->envname("GCR_AUTHORITY");
  app.add_option("--crl", tls.revoked,
                 "The authority's list of revoked certificates (default: none is used)")
      ->envname("GCR_CRL");
}

void describe_certificates(CLI::App& app, TlsFiles& tls) {
  describe_authority(app, tls);
  app.add_option("--cert", tls.certificate,
                 "Your certificate (default: operator.crt in ~/.config/gcr-migrate, else in "
                 "/etc/gcr-migrate)")
      ->envname("GCR_CERTIFICATE");
  app.add_option("--key", tls.key, "Its private key (default: operator.key)")->envname("GCR_KEY");
}

Result<TlsFiles> find_authority(TlsFiles given) {
  if (given.authority.empty()) given.authority = folder_with("ca.crt") / "ca.crt";
  errno = 0;
  if (std::ifstream(given.authority)) return given;
  return Error(Code::kInvalidArgument,
               Error::from_errno(errno, "cannot read " + given.authority).message());
}

Result<NamedAgent> find_agent(const std::string& text, const TlsFiles& given) {
  GCR_ASSIGN(const auto named, find_host(text));
  NamedAgent agent{{}, given};
  if (named) {
    agent.endpoint = named->endpoint;
    complete(agent.tls, named->tls);
  } else {
    GCR_ASSIGN(agent.endpoint, Endpoint::parse_local_too(text));
  }
  complete(agent.tls, default_files());
  return agent;
}

Result<Endpoint> find_destination(const std::string& text) {
  GCR_ASSIGN(const auto named, find_host(text));
  return named ? named->endpoint : Endpoint::parse(text);
}

Result<AgentAddress> with_certificates(const NamedAgent& agent) {
  AgentAddress address{agent.endpoint, nullptr, std::nullopt, "", kTimeout};
  if (!agent.endpoint.is_local()) {
    GCR_ASSIGN(address.tls, control::make_tls_context(agent.tls));
  }
  return address;
}

Result<proto::Envelope> ask_and_wait(const AgentAddress& agent, const proto::Envelope& question) {
  Result<proto::Envelope> answer = Error(Code::kInternal, "internal error: unexpected exception");
  asio::io_context io(1);
  asio::co_spawn(io, control::ask_for_reply(agent, {}, question),
                 [&](const std::exception_ptr& exception, Result<proto::Envelope> result) {
                   if (!exception) answer = std::move(result);
                 });
  io.run();
  return answer;
}

}  // namespace gcr::cli
