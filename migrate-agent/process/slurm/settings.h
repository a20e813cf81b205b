// What agent.toml says of Slurm on this host, in its table [slurm].
#pragma once

#include <filesystem>
#include <string>

namespace gcr::slurm {

struct Settings {
  std::string node;  ///< what Slurm calls this host (NodeName); empty: it has no Slurm
  std::filesystem::path spool = "/var/spool/slurmd";  ///< SlurmdSpoolDir, as slurmd expands it
  std::filesystem::path library =
      "/usr/lib/x86_64-linux-gnu/slurm-wlm/libslurmfull.so";  ///< where Debian has it
  std::filesystem::path folder = "/run/gcr-migrate-slurm";    ///< see folder.h
  std::filesystem::path adopter;                              ///< gcr-slurm-adopt

  bool is_set() const { return !node.empty(); }
};

}  // namespace gcr::slurm
