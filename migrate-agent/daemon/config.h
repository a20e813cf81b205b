// What an agent is told by its configuration file, /etc/gcr-migrate/agent.toml (TOML). Every key
// has a default; a key that is not known is an error, with the known key that is nearest to it.
//
//   listen          = "0.0.0.0:7411"          # "[::]:7411" for IPv6 and IPv4
//   advertise       = "node1:7411"            # where other agents reach this one; default: the
//                                             # address it connects from, and the port of `listen`
//   host            = "node1"                 # for people; default: the machine's host name
//   lanes           = 0                       # data connections per migration, 1 to 32; 0: by the
//                                             # two hosts' cores and links
//   data_addresses  = []                      # "10.1.0.5", …: where data connections reach this
//                                             # host, spread over all; default: where the source
//                                             # reached the agent
//   unencrypted_data = false                  # whether data may travel without TLS where the other
//                                             # agent's configuration says so too: by RDMA, or if
//                                             # the operator asks for it
//   hugepages       = "auto"                  # "auto", "require" or "never"
//   gpus            = []                      # UUIDs that this agent may place processes on;
//   empty:
//                                             # all
//   log_level       = "info"                  # "debug", "info", "warning", "error"
//   max_startups    = 128                     # connections that have not shown a certificate yet
//   startup_timeout_ms = 10000                # for the preface, and for the handshake
//   peer_silence_ms = 15000                   # an agent that says nothing for so long is gone
//   state_dir       = "/var/lib/gcr-migrate"  # the journals
//   runtime_dir     = "/run/gcr-migrate"      # on tmpfs: CRIU's images
//
//   [tls]
//   authority   = "/etc/gcr-migrate/ca.crt"
//   certificate = "/etc/gcr-migrate/agent.crt"
//   key         = "/etc/gcr-migrate/agent.key"
//
//   [criu]
//   command     = ["criu"]                # the program and the arguments before CRIU's own
//   reaper      = ""                      # empty: gcr-reaper beside the agent or in ../libexec
//
// Workers read the file anew, so everything but `listen` and `max_startups` takes effect with the
// next migration.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "migrate-agent/data/negotiation.h"
#include "src/base/result.h"
#include "src/base/uuid.h"
#include "src/control/control_channel.h"

namespace gcr::agent {

inline constexpr const char* kDefaultConfigPath = "/etc/gcr-migrate/agent.toml";

/// Whether the landing region is made of hugepages. Zero is never used.
enum class HugepagePolicy : std::uint8_t {
  kInvalid = 0,
  kAuto = 1,     ///< hugepages where they can be had, else ordinary pages and a note
  kRequire = 2,  ///< refuse a migration that hugepages cannot be had for
  kNever = 3,
};

struct Config {
  control::Endpoint listen{"0.0.0.0", control::kDefaultPort};
  std::string advertise;  ///< "host:port", or empty
  std::string host;
  unsigned lanes = 0;                       ///< 0: by cores and link
  std::vector<std::string> data_addresses;  ///< hosts; may be empty
  bool unencrypted_data = false;
  HugepagePolicy hugepages = HugepagePolicy::kAuto;
  std::vector<Uuid> gpus;  ///< empty: every GPU of the machine
  std::string log_level = "info";
  unsigned max_startups = 128;
  unsigned startup_timeout_ms = 10'000;
  unsigned peer_silence_ms = 15'000;
  std::filesystem::path state_dir = "/var/lib/gcr-migrate";
  std::filesystem::path runtime_dir = "/run/gcr-migrate";
  control::TlsFiles tls{"/etc/gcr-migrate/ca.crt", "/etc/gcr-migrate/agent.crt",
                        "/etc/gcr-migrate/agent.key"};
  std::vector<std::string> criu_command{"criu"};
  std::filesystem::path reaper;  ///< after load_config never empty

  /// The file it came from; empty for defaults.
  std::filesystem::path source;
};

/// Reads and checks the file. Fails with kNotFound if there is none, kInvalidArgument with file,
/// line and key for anything wrong in it. Does not look at the TLS files, directories or programs.
Result<Config> load_config(const std::filesystem::path& path);

/// The same, from text; `name` stands for the file in errors.
Result<Config> parse_config(const std::string& text, const std::string& name);

}  // namespace gcr::agent
