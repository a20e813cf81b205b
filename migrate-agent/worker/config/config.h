// The configuration file of an agent, /etc/gcr-migrate/agent.toml (TOML). Every key has a default;
// an unknown key is an error, which lists the known keys.
//
//   listen          = "0.0.0.0:7411"          # "[::]:7411" for IPv6 and IPv4
//   advertise       = "node1:7411"            # where other agents reach this one; default: the
//                                             # address it connects from, and the port of `listen`
//   host            = "node1"                 # in messages; default: the system's host name
//   lanes           = 0                       # data connections per migration, 1 to 32; 0: chosen
//                                             # by the two hosts' cores and links
//   data_addresses  = []                      # "10.1.0.5", …: where data connections reach this
//                                             # host, spread over all; default: where the source
//                                             # reached the agent
//   unencrypted_data = false                  # whether data may travel without TLS, if the other
//                                             # agent's configuration says so too: over RDMA, or
//                                             # if the operator asks for it
//   allow_unfrozen  = false                   # whether processes may be moved where no control
//                                             # group can be frozen: a SIGCONT of any process of
//                                             # the user then wakes a copy that must not run
//   hugepages       = "auto"                  # "auto", "require" or "never"
//   landing_window  = "4 GiB"                 # memory through which VRAM comes to this host, per
//                                             # migration: at most this, from "64 MiB"; without
//                                             # prefill it is as much as the VRAM
//   gpus            = []                      # UUIDs that this agent may place processes on;
//                                             # none: all
//   sysfs           = "/sys"                  # mount point of this host's sysfs, which describes
//                                             # AMD GPUs
//   log_level       = "info"                  # "debug", "info", "warning", "error"
//   max_startups    = 128                     # connections that have not shown a certificate yet
//   startup_timeout_ms = 10000                # for the preface, and for the handshake
//   peer_silence_ms = 15000                   # an agent that sends nothing for this long is lost
//   max_connections = 512                     # control connections at a time, including queries
//   max_migrations  = 16                      # migrations at a time with this host as their
//                                             # source, and as many with it as destination
//   max_migrations_per_user = 0               # how many of these one operator or local user may
//                                             # have ordered; 0: half of max_migrations
//   local_socket    = ""                      # "/run/gcr-migrate.sock": for local users, for their
//                                             # own processes only; empty: none
//   metrics_listen  = ""                      # "127.0.0.1:9411": Prometheus metrics and /healthz,
//                                             # without TLS; empty: none
//   audit_log       = ""                      # a file that gets a line for every migration that
//                                             # ends; empty: the line goes to the log
//   state_dir       = "/var/lib/gcr-migrate"  # the journals
//   runtime_dir     = "/run/gcr-migrate"      # on tmpfs: CRIU's images
//
//   [tls]
//   authority   = "/etc/gcr-migrate/ca.crt"
//   certificate = "/etc/gcr-migrate/agent.crt"
//   key         = "/etc/gcr-migrate/agent.key"
//   revoked     = ""                      # a CRL of the authority (PEM); empty: none is used
//
//   [[operators]]                         # which operators may move whose processes; without any
//   name        = "night-shift"           # such table every operator may move every process.
//   users       = ["alice", "1001", "*"]  # `name` is the certificate's common name or "*"
//
//   [[peers]]                             # agents whose migrations and checkpoints are accepted;
//   name        = "node2"                 # without any such table those of every agent of the
//                                         # authority. `name` is the certificate's common name
//
//   [criu]
//   command     = []                      # the program and the arguments before CRIU's own; none:
//                                         # the one installed with the agent, else "criu"
//   reaper      = ""                      # empty: gcr-reaper next to the agent or in ../libexec
//   plugins     = ""                      # directory of amdgpu_plugin.so, which CRIU loads for
//                                         # processes that use AMD GPUs; empty: in amdgpu next to
//                                         # CRIU, else /usr/lib/criu
//   plugin_environment = ["KFD_MAX_BUFFER_SIZE=256M"]  # its environment: what it compares
//                                         # (KFD_…_CHECK), how much memory it uses
//
//   [slurm]
//   node        = ""                      # Slurm's name of this host (NodeName); empty: no
//                                         # process is moved into Slurm jobs here
//   spool       = "/var/spool/slurmd"     # SlurmdSpoolDir, without %n and %h
//   library     = "/usr/lib/x86_64-linux-gnu/slurm-wlm/libslurmfull.so"
//   folder      = "/run/gcr-migrate-slurm"  # where job scripts read the state of moved processes
//
// Each worker reads the file again, so most keys take effect with the next migration. The daemon
// reads `tls`, both limits on migrations and `log_level` again on SIGHUP, and its other keys
// (`listen`, `local_socket`, `metrics_listen`, the other limits) when it is started.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "migrate-agent/criu/launch/command.h"
#include "migrate-agent/linux/hostmem/memory_info.h"
#include "migrate-agent/process/slurm/step.h"
#include "src/base/result.h"
#include "src/base/units.h"
#include "src/base/uuid.h"
#include "src/control/endpoint.h"
#include "src/control/tls_files.h"

namespace gcr::worker {

/// Default limit on the time that the last round of a migration takes to send.
inline constexpr double kDefaultDowntimeLimitMs = 300;

inline constexpr const char* kDefaultConfigPath = "/etc/gcr-migrate/agent.toml";

/// One [[operators]] table.
struct OperatorRule {
  std::string name;                ///< a common name, or "*"
  std::vector<std::string> users;  ///< names, numbers, or "*"
};

struct Config {
  control::Endpoint listen{"0.0.0.0", control::kDefaultPort};
  std::string advertise;  ///< "host:port", or empty
  std::string host;
  unsigned lanes = 0;                       ///< 0: by cores and link
  std::vector<std::string> data_addresses;  ///< hosts; may be empty
  bool unencrypted_data = false;
  bool allow_unfrozen = false;
  hostmem::HugepagePolicy hugepages = hostmem::HugepagePolicy::kAuto;
  std::uint64_t landing_window_bytes = 4 * kGiB;
  std::vector<Uuid> gpus;  ///< empty: every GPU of the machine
  std::filesystem::path sysfs = "/sys";
  std::string log_level = "info";
  unsigned max_startups = 128;
  unsigned startup_timeout_ms = 10'000;
  unsigned peer_silence_ms = 15'000;
  unsigned max_connections = 512;
  unsigned max_migrations = 16;
  unsigned max_migrations_per_user = 0;             ///< 0: half of max_migrations
  std::filesystem::path local_socket;               ///< may be empty
  std::optional<control::Endpoint> metrics_listen;  ///< port 0 stands for any free one
  std::filesystem::path audit_log;                  ///< may be empty
  std::filesystem::path state_dir = "/var/lib/gcr-migrate";
  std::filesystem::path runtime_dir = "/run/gcr-migrate";
  control::TlsFiles tls{"/etc/gcr-migrate/ca.crt", "/etc/gcr-migrate/agent.crt",
                        "/etc/gcr-migrate/agent.key", ""};
  std::vector<OperatorRule> operators;  ///< none: every operator may move every process
  std::vector<std::string> peers;       ///< common names of the agents that may send; none: all may
  criu::Command criu{.argv = {"criu"}, .reaper = {}};  ///< after load_config with a reaper
  slurm::Settings slurm;                               ///< after load_config with an adopter

  /// Where CRIU works for a migration away from this host.
  std::filesystem::path scratch_of(const Uuid& migration) const {
    return runtime_dir / "outgoing" / migration.to_string();
  }

  std::chrono::milliseconds peer_silence() const {
    return std::chrono::milliseconds(peer_silence_ms);
  }

  /// Returns whether this agent may place processes on a GPU.
  bool allows(const Uuid& gpu) const {
    return gpus.empty() || std::ranges::find(gpus, gpu) != gpus.end();
  }

  /// Returns how many migrations in each role one operator or local user may have ordered.
  unsigned migrations_of_one_user() const {
    return max_migrations_per_user != 0 ? max_migrations_per_user : (max_migrations + 1) / 2;
  }

  /// The file that was loaded; empty for defaults.
  std::filesystem::path source;
};

/// Reads and checks the file. kNotFound if there is none; kInvalidArgument, with file, line and
/// key, for each error in it. Does not examine the TLS files, directories or programs.
Result<Config> load_config(const std::filesystem::path& path);

/// Parses a configuration from text; `name` is the file's name in errors.
Result<Config> parse_config(const std::string& text, const std::string& name);

}  // namespace gcr::worker
