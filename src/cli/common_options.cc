#include "src/cli/common_options.h"

#include <fmt/format.h>

#include <charconv>
#include <cstdlib>
#include <filesystem>

namespace gcr::cli {
namespace {

constexpr const char* kSystemFolder = "/etc/gcr-migrate";

std::filesystem::path personal_folder() {
  const char* config = std::getenv("XDG_CONFIG_HOME");
  if (config != nullptr && *config == '/') return std::filesystem::path(config) / "gcr-migrate";
  const char* home = std::getenv("HOME");
  if (home == nullptr || *home != '/') return {};
  return std::filesystem::path(home) / ".config" / "gcr-migrate";
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
