// The link between the two soft RDMA devices that scripts/lib/guest-rdma-pair created, and its
// faults. For programs that run alone in scripts/guest's machine.
#pragma once

#include <cstdint>
#include <string>

namespace gcr::test {

/// The working link is restored when it ends. Aborts if commands fail: nothing could be tested. An
/// interface that goes down is not tested here: soft RoCE then breaks the queue pair of its
/// connection messages permanently, and its kernel may wait for one of these forever in
/// rdma_destroy_id. To a real device, such a link is a silent one.
class RdmaLink {
 public:
  static constexpr const char* kSenderAddress = "10.9.0.1";
  static constexpr const char* kReceiverAddress = "10.9.0.2";

  RdmaLink() = default;
  RdmaLink(const RdmaLink&) = delete;
  RdmaLink& operator=(const RdmaLink&) = delete;
  ~RdmaLink();

  void stall();                              ///< every packet is lost, both ways
  void lose(double percent);                 ///< of the packets, both ways
  void pass_only(std::uint64_t more_bytes);  ///< from the sender; all later ones are lost
};

}  // namespace gcr::test
