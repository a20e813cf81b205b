// Sends the files that a container has for itself to the container that receives the job: its
// writable layer and its tmpfs mounts (migrate-agent/process/layer). They are sent in rounds
// while the job runs, and what has changed since once more when it is stopped.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "migrate-agent/process/layer/snapshot.h"
#include "migrate-agent/process/layer/tree.h"
#include "migrate-agent/transfer/images/sink.h"
#include "proto/control.pb.h"
#include "src/base/result.h"

namespace gcr::migration::source {

/// Move-only; one thread at a time. Blocking.
class OutgoingLayers {
 public:
  /// Of a job in no container.
  OutgoingLayers() = default;

  /// Of the container with this init. `max_bytes`: of each tree.
  static Result<OutgoingLayers> open(pid_t init, std::uint64_t max_bytes);

  /// Sends what has changed since the last call.
  Status send(images::Sink& sink, const layer::KnownFiles& known = {});

  /// What was sent, for the destination; after the last send().
  std::vector<proto::Layer> sent() const;

  /// What was left out and why, and the volumes, which are not carried.
  std::vector<std::string> notes() const;

 private:
  struct Outgoing {
    layer::Tree tree;
    layer::Snapshot last;
    std::vector<std::string> packs;
  };

  std::vector<Outgoing> trees_;
  std::vector<layer::Volume> volumes_;
  std::uint64_t max_bytes_ = 0;
  layer::Notes notes_;
};

/// The image with the changes of a tree in a round.
std::string layer_image(std::size_t tree, std::size_t round);

}  // namespace gcr::migration::source
