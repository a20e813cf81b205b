#include "migrate-agent/preflight/compare/security_labels.h"

#include <fmt/format.h>
#include <unistd.h>

#include <fstream>
#include <string>

#include "migrate-agent/process/inspect/surroundings.h"

namespace gcr::preflight {
namespace {

using findings::Findings;

bool has_profile(const std::string& profile) {
  std::ifstream profiles("/sys/kernel/security/apparmor/profiles");
  for (std::string line; std::getline(profiles, line);) {
    if (line.starts_with(profile + " (")) return true;
  }
  return false;
}

void compare_profile(const std::string& profile, findings::Findings& findings) {
  if (has_profile(profile)) return;
  findings.add(findings::kSecurityLabel,
               fmt::format("this host has no AppArmor profile \"{}\"", profile));
}

/// Compares SELinux contexts: a restored process gets that of the agent. If this host has no
/// SELinux, a process that was unconfined loses nothing.
void compare_context(const std::string& there, findings::Findings& findings) {
  const std::string here = process::selinux_context(::getpid());
  const bool confined = there.find(":unconfined_t:") == std::string::npos;
  if (here == there || (here.empty() && !confined)) return;
  findings.add(findings::kSecurityLabel,
               here.empty() ? fmt::format("the process has the SELinux context {}, and this host "
                                          "has no SELinux",
                                          there)
                            : fmt::format("the process has the SELinux context {}, and would get "
                                          "that of the agent here, {}",
                                          there, here));
}

}  // namespace

void compare_security_labels(const proto::ProcessFacts& process, findings::Findings& findings) {
  if (!process.apparmor_profile().empty()) compare_profile(process.apparmor_profile(), findings);
  if (!process.selinux_context().empty()) compare_context(process.selinux_context(), findings);
}

}  // namespace gcr::preflight
