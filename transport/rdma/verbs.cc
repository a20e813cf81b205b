#include "transport/rdma/verbs.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <filesystem>

#include "src/base/units.h"
#include "transport/lane_thread.h"

namespace gcr::transport::rdma {
namespace {

// Attempts to send while the peer has no receive posted, which never happens with a valid peer.
constexpr std::uint8_t kAttemptsWithoutReceive = 3;
constexpr std::uint8_t kRetries = 7;  // the largest value of a queue pair

}  // namespace

Error verbs_error(std::string_view doing) {
  const int error = errno;
  const Error plain = Error::from_errno(error, fmt::format("cannot {}", doing));
  switch (error) {
    case ENODEV:
      return Error(Code::kUnsupported, fmt::format("cannot {}: there is no RDMA device", doing));
    case ENOMEM:
      return Error(
          plain.code(),
          plain.message() + " (the limit on locked memory, RLIMIT_MEMLOCK, may be too low)");
    case EADDRNOTAVAIL:
      return Error(Code::kUnavailable, plain.message());
    default:
      return plain;
  }
}

Status check_rdma_available() {
  std::error_code ignored;
  const std::filesystem::path devices = "/sys/class/infiniband";
  if (!std::filesystem::exists(devices, ignored) || std::filesystem::is_empty(devices, ignored)) {
    return Error(Code::kUnsupported, "this host has no RDMA device");
  }
  const char* const manager = "/dev/infiniband/rdma_cm";
  if (!std::filesystem::exists(manager, ignored)) {
    return Error(
        Code::kUnsupported,
        fmt::format("there are RDMA devices, but no {}: load the kernel module rdma_ucm", manager));
  }
  return {};
}

Result<EventChannel> make_event_channel() {
  EventChannel channel(rdma_create_event_channel());
  if (!channel) return verbs_error("create an event channel for RDMA connections");
  GCR_TRY(set_blocking(channel->fd, false));
  return channel;
}

Result<ConnectionEvent> next_event(rdma_event_channel* channel) {
  rdma_cm_event* event = nullptr;
  if (rdma_get_cm_event(channel, &event) == 0) return ConnectionEvent(event);
  if (errno == EAGAIN || errno == EINTR) return ConnectionEvent();
  return verbs_error("read an event of an RDMA connection");
}

Result<ConnectionId> make_id(rdma_event_channel* channel) {
  rdma_cm_id* id = nullptr;
  if (rdma_create_id(channel, &id, nullptr, RDMA_PS_TCP) != 0) {
    return verbs_error("create an RDMA connection");
  }
  return ConnectionId(id);
}

Result<ProtectionDomain> make_protection_domain(ibv_context* device) {
  ProtectionDomain domain(ibv_alloc_pd(device));
  if (!domain) return verbs_error("allocate a protection domain");
  return domain;
}

Result<MemoryRegion> register_memory(ibv_pd* domain, std::span<const std::byte> bytes, int access) {
  MemoryRegion region(
      ibv_reg_mr(domain, const_cast<std::byte*>(bytes.data()), bytes.size(), access));
  if (!region) {
    return verbs_error(fmt::format("register {} at {} with {}", format_bytes(bytes.size()),
                                   fmt::ptr(bytes.data()),
                                   ibv_get_device_name(domain->context->device)));
  }
  return region;
}

Result<ibv_pd*> Domains::add(ibv_context* device) {
  if (ibv_pd* const known = find(device)) return known;
  GCR_ASSIGN(ProtectionDomain domain, make_protection_domain(device));
  return domains_.emplace_back(std::move(domain)).get();
}

ibv_pd* Domains::find(const ibv_context* device) const {
  for (const ProtectionDomain& domain : domains_) {
    if (domain->context == device) return domain.get();
  }
  return nullptr;
}

Result<std::vector<MemoryRegion>> Domains::register_all(std::span<const std::byte> bytes,
                                                        int access) const {
  std::vector<MemoryRegion> regions;
  for (const ProtectionDomain& domain : domains_) {
    if (bytes.empty()) break;
    GCR_ASSIGN(MemoryRegion region, register_memory(domain.get(), bytes, access));
    regions.push_back(std::move(region));
  }
  return regions;
}

const ibv_mr* of_domain(const std::vector<MemoryRegion>& regions, const ibv_pd* domain) {
  for (const MemoryRegion& region : regions) {
    if (region->pd == domain) return region.get();
  }
  return nullptr;
}

Status set_peer_timeout(rdma_cm_id* id, std::chrono::milliseconds peer_timeout) {
  // The wait for one acknowledgement, as an exponent (InfiniBand, 9.7.6.1.3: 4.096 µs · 2^n), so
  // that kRetries of them stay below `peer_timeout`.
  const auto microseconds =
      std::chrono::duration_cast<std::chrono::microseconds>(peer_timeout).count();
  const auto units = static_cast<std::uint64_t>(
      std::max(2.0, static_cast<double>(microseconds) / (kRetries + 1) / 4.096));
  auto exponent =
      static_cast<std::uint8_t>(std::clamp(static_cast<int>(std::bit_width(units)) - 1, 10, 21));
  if (rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_ACK_TIMEOUT, &exponent, sizeof exponent) !=
      0) {
    return verbs_error("set the acknowledgement timeout");
  }
  return {};
}

rdma_conn_param connection_parameters(std::span<const std::byte> private_data) {
  rdma_conn_param parameters{};
  parameters.private_data = private_data.data();
  parameters.private_data_len = static_cast<std::uint8_t>(private_data.size());
  parameters.retry_count = kRetries;
  parameters.rnr_retry_count = kAttemptsWithoutReceive;
  return parameters;
}

Error completion_error(const ibv_wc& completion, std::string_view peer) {
  const char* const status = ibv_wc_status_str(completion.status);
  switch (completion.status) {
    case IBV_WC_RETRY_EXC_ERR:
    case IBV_WC_RESP_TIMEOUT_ERR:
      return Error(
          Code::kUnavailable,
          fmt::format("{} stopped answering: its device acknowledges nothing ({})", peer, status));
    case IBV_WC_LOC_QP_OP_ERR:  // soft RoCE, where there is no route
      return Error(Code::kUnavailable,
                   fmt::format("the RDMA device cannot send to {} ({})", peer, status));
    case IBV_WC_WR_FLUSH_ERR:
      return Error(Code::kUnavailable, fmt::format("the connection to {} was closed", peer));
    case IBV_WC_RNR_RETRY_EXC_ERR:
      return Error(Code::kProtocol,
                   fmt::format("{} has no receive posted for a message ({})", peer, status));
    case IBV_WC_REM_ACCESS_ERR:
      return Error(
          Code::kPermissionDenied,
          fmt::format("the device of {} refused access to the address ({})", peer, status));
    case IBV_WC_REM_INV_REQ_ERR:
    case IBV_WC_REM_OP_ERR:
      return Error(Code::kProtocol,
                   fmt::format("the device of {} refused the request ({})", peer, status));
    case IBV_WC_LOC_LEN_ERR:
      return Error(Code::kProtocol, fmt::format("{} sent a message that is too long", peer));
    default:
      return Error(Code::kIo, fmt::format("the RDMA device failed: {} (vendor code {:#x})", status,
                                          completion.vendor_err));
  }
}

}  // namespace gcr::transport::rdma
