#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <optional>

#include "src/control/wire.h"

namespace gcr::control {
namespace {

constexpr std::size_t kMaxHostBytes = 255;

Error bad_endpoint(const std::string& text, std::string_view why) {
  return Error(Code::kInvalidArgument,
               fmt::format("\"{}\" is not a host or host:port: {}", printable(text), why));
}

bool is_host_character(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '.' || c == '-' || c == '_' ||
         c == ':' || c == '%';
}

}  // namespace

Result<Endpoint> Endpoint::parse(const std::string& text) {
  Endpoint endpoint;
  std::string_view rest = text;
  std::optional<std::string_view> port;
  if (rest.starts_with('[')) {
    const auto end = rest.find(']');
    if (end == std::string_view::npos) return bad_endpoint(text, "the \"]\" is missing");
    endpoint.host = rest.substr(1, end - 1);
    rest.remove_prefix(end + 1);
    if (!rest.empty() && rest[0] != ':') return bad_endpoint(text, "after \"]\" comes \":port\"");
    if (!rest.empty()) port = rest.substr(1);
  } else if (std::ranges::count(rest, ':') == 1) {
    port = rest.substr(rest.find(':') + 1);
    endpoint.host = rest.substr(0, rest.find(':'));
  } else {
    endpoint.host = rest;
  }
  if (endpoint.host.empty()) return bad_endpoint(text, "the host is missing");
  if (endpoint.host.size() > kMaxHostBytes) return bad_endpoint(text, "the host is too long");
  if (!std::ranges::all_of(endpoint.host, is_host_character)) {
    return bad_endpoint(text, "a host has only letters, digits, \".\", \"-\", \"_\" and \":\"");
  }
  if (port) {
    const auto [end, error] = std::from_chars(port->begin(), port->end(), endpoint.port);
    if (error != std::errc{} || end != port->end() || endpoint.port == 0) {
      return bad_endpoint(text, "a port is a number from 1 to 65535");
    }
  }
  return endpoint;
}

Result<Endpoint> Endpoint::parse_local_too(const std::string& text) {
  constexpr std::string_view kScheme = "unix:";
  if (text == "local") return Endpoint{std::string(kDefaultLocalSocket), 0};
  if (!text.starts_with(kScheme)) return parse(text);
  const std::string path = text.substr(kScheme.size());
  if (!path.starts_with('/')) return bad_endpoint(text, "after \"unix:\" comes an absolute path");
  return Endpoint{path, 0};
}

std::string Endpoint::to_string() const {
  if (is_local()) return "unix:" + host;
  const bool v6 = host.find(':') != std::string::npos;
  return v6 ? fmt::format("[{}]:{}", host, port) : fmt::format("{}:{}", host, port);
}

}  // namespace gcr::control
