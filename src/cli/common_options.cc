#include "src/cli/common_options.h"

#include <fmt/format.h>

#include <charconv>
#include <cstdlib>
#include <filesystem>
#include <vector>

#include "src/cli/hosts.h"

namespace gcr::cli {
namespace {

constexpr const char* kSystemFolder = "/etc/gcr-migrate";
constexpr const char* kHostsFile = "hosts.toml";

std::filesystem::path personal_folder() {
  const char* config = std::getenv("XDG_CONFIG_HOME");
  if (config != nullptr && *config == '/') return std::filesystem::path(config) / "gcr-migrate";
  const char* home = std::getenv("HOME");
  if (home == nullptr || *home != '/') return {};
  return std::filesystem::path(home) / ".config" / "gcr-migrate";
}

/// The user's own come first.
std::vector<std::filesystem::path> hosts_files() {
  std::vector<std::filesystem::path> files;
  const std::filesystem::path personal = personal_folder();
  if (!personal.empty()) files.push_back(personal / kHostsFile);
  files.push_back(std::filesystem::path(kSystemFolder) / kHostsFile);
  return files;
}

}  // namespace

void describe_certificates(CLI::App& app, control::TlsFiles& tls) {
  app.add_option("--ca", tls.authority, "The authority's certificate (default: ca.crt)")
      ->envname("GCR_AUTHORITY");
  app.add_option("--cert", tls.certificate,
                 "Your certificate (default: operator.crt in ~/.config/gcr-migrate, else in "
                 "/etc/gcr-migrate)")
      ->envname("GCR_CERTIFICATE");
  app.add_option("--key", tls.key, "Its private key (default: operator.key)")->envname("GCR_KEY");
  app.add_option("--crl", tls.revoked,
                 "A list of revoked certificates of the authority's (default: none is looked at)")
      ->envname("GCR_CRL");
}

control::TlsFiles with_defaults(control::TlsFiles files) {
  std::filesystem::path folder = personal_folder();
  std::error_code ignored;
  if (folder.empty() || !std::filesystem::exists(folder / "operator.crt", ignored)) {
    folder = kSystemFolder;
  }
  if (files.authority.empty()) files.authority = folder / "ca.crt";
  if (files.certificate.empty()) files.certificate = folder / "operator.crt";
  if (files.key.empty()) files.key = folder / "operator.key";
  return files;
}

Result<control::Endpoint> find_agent(const std::string& text, control::TlsFiles& tls) {
  GCR_ASSIGN(const auto named, find_host(hosts_files(), text));
  if (!named) return control::Endpoint::parse_local_too(text);
  if (tls.authority.empty()) tls.authority = named->tls.authority;
  if (tls.certificate.empty()) tls.certificate = named->tls.certificate;
  if (tls.key.empty()) tls.key = named->tls.key;
  if (tls.revoked.empty()) tls.revoked = named->tls.revoked;
  return named->agent;
}

Result<control::Endpoint> find_destination(const std::string& text) {
  GCR_ASSIGN(const auto named, find_host(hosts_files(), text));
  return named ? named->agent : control::Endpoint::parse(text);
}

Result<int> parse_pid(const std::string& text) {
  int pid = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), pid);
  if (error != std::errc{} || end != text.data() + text.size() || pid <= 0) {
    return Error(Code::kInvalidArgument,
                 fmt::format("PID is a number above 0, not \"{}\"", control::printable(text)));
  }
  return pid;
}

}  // namespace gcr::cli
