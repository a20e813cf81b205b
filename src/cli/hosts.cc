#include "src/cli/hosts.h"

#include <fmt/format.h>
#include <toml++/toml.h>

#include <cerrno>
#include <fstream>
#include <sstream>

namespace gcr::cli {
namespace {

Error wrong(const std::string& file, const toml::node& node, const std::string& what) {
  return Error(Code::kInvalidArgument,
               fmt::format("{}:{}: {}", file, node.source().begin.line, what));
}

Result<std::string> text_of(const std::string& file, const toml::node& node,
                            const std::string& name) {
  const auto text = node.value_exact<std::string>();
  if (!text || text->empty())
    return wrong(file, node, name + " must be a string that is not empty");
  return *text;
}

Result<control::Endpoint> endpoint_of(const std::string& file, const toml::node& node,
                                      const std::string& name) {
  GCR_ASSIGN(const std::string text, text_of(file, node, name));
  auto endpoint = control::Endpoint::parse(text);
  if (!endpoint) return wrong(file, node, fmt::format("{}: {}", name, endpoint.error().message()));
  return endpoint;
}

Result<NamedHost> read_table(const std::string& file, const toml::table& table,
                             const std::string& name) {
  NamedHost host;
  for (const auto& [key, node] : table) {
    const std::string full = name + "." + std::string(key.str());
    if (key == "agent") {
      GCR_ASSIGN(host.agent, endpoint_of(file, node, full));
    } else if (key == "ca") {
      GCR_ASSIGN(host.tls.authority, text_of(file, node, full));
    } else if (key == "cert") {
      GCR_ASSIGN(host.tls.certificate, text_of(file, node, full));
    } else if (key == "key") {
      GCR_ASSIGN(host.tls.key, text_of(file, node, full));
    } else if (key == "crl") {
      GCR_ASSIGN(host.tls.revoked, text_of(file, node, full));
    } else {
      return wrong(file, node, full + " is not known; a host has agent, ca, cert, key and crl");
    }
  }
  if (!table.contains("agent")) return wrong(file, table, name + " has no agent");
  return host;
}

Result<NamedHost> read_host(const std::string& file, const toml::node& node,
                            const std::string& name) {
  if (const toml::table* table = node.as_table()) return read_table(file, *table, name);
  NamedHost host;
  GCR_ASSIGN(host.agent, endpoint_of(file, node, name));
  return host;
}

/// Every host is read, so that a mistake shows before the day on which its host is needed.
Result<std::optional<NamedHost>> find_in(const std::string& file, const std::string& text,
                                         const std::string& name) {
  try {
    std::optional<NamedHost> found;
    for (const auto& [key, node] : toml::parse(text, file)) {
      GCR_ASSIGN(NamedHost host, read_host(file, node, std::string(key.str())));
      if (key == name) found = std::move(host);
    }
    return found;
  } catch (const toml::parse_error& error) {
    return Error(Code::kInvalidArgument,
                 fmt::format("{}:{}: {}", file, error.source().begin.line, error.description()));
  }
}

}  // namespace

Result<std::optional<NamedHost>> find_host(const std::vector<std::filesystem::path>& files,
                                           const std::string& name) {
  for (const std::filesystem::path& path : files) {
    std::ifstream file(path);
    if (!file && (errno == ENOENT || errno == ENOTDIR)) continue;
    std::ostringstream text;
    if (file) text << file.rdbuf();
    if (!file) {
      return Error(Code::kInvalidArgument,
                   Error::from_errno(errno, "cannot read " + path.string()).message());
    }
    GCR_ASSIGN(auto found, find_in(path.string(), text.str(), name));
    if (found) return found;
  }
  return std::optional<NamedHost>();
}

}  // namespace gcr::cli
