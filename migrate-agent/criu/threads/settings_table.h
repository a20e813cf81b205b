// The settings of threads and processes that one system call reads, and another one sets.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "migrate-agent/criu/threads/held_processes.h"
#include "migrate-agent/criu/threads/thread_calls.h"
#include "proto/control.pb.h"
#include "src/base/result.h"

namespace gcr::criu {

inline constexpr std::size_t kNodeBytes = 128;  ///< of a mask of NUMA nodes
inline constexpr std::size_t kNodesAt = 8;      ///< in the bytes of a call
using CallBytes = std::array<std::byte, kNodesAt + kNodeBytes>;

/// Where a call gives the value.
enum class SettingForm : std::uint8_t {
  kResult,  ///< it returns it
  kInt,     ///< it writes an int
  kPolicy,  ///< it writes an int and a mask of NUMA nodes
};

struct SettingRow {
  std::string_view name;
  bool of_process;
  SettingForm form;
  ThreadCall get;
  ThreadCall set;
  std::uint64_t usual;
  /// From what `get` says to what `set` takes; null: the same.
  std::uint64_t (*value)(std::uint64_t) = nullptr;
  /// What is seen from outside, as `get` would give it. Null, or none: the thread has to be asked.
  std::optional<std::uint64_t> (*outside)(const ListedThread& thread) = nullptr;
  std::string_view finding{};  ///< of one that confines a process
  bool needed = false;         ///< a program that has it cannot go on without
};

/// In the order in which they are set: what confines comes last.
std::span<const SettingRow> settings_table();

/// How many bytes the call that reads it writes.
std::size_t bytes_of(SettingForm form);

/// What the kernel said to a row's question. None if that is the usual, or unknown to the kernel.
std::optional<proto::Setting> setting_of(const SettingRow& row, std::int64_t result,
                                         const CallBytes& bytes);

/// Of the calling thread.
std::optional<proto::Setting> read_own(const SettingRow& row);

/// What the kernel says to `thread`.
Result<std::int64_t> set_row(const SettingRow& row, const proto::Setting& setting,
                             ThreadCalls& thread);

proto::Setting usual(const SettingRow& row);

}  // namespace gcr::criu
