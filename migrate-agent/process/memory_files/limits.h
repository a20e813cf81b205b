// How many files in memory a job may take along, how large they may be, and what is said of them.
#pragma once

#include <google/protobuf/repeated_ptr_field.h>

#include <cstddef>
#include <cstdint>

#include "proto/control.pb.h"
#include "src/base/units.h"

namespace gcr::memory_files {

using FileFacts = google::protobuf::RepeatedPtrField<proto::MemoryFile>;

inline constexpr int kMaxFiles = 4096;

/// Of one file, holes included: all of it is read while the job is stopped.
inline constexpr std::uint64_t kMaxFileBytes = 64 * kGiB;

/// Hard links, and names that are gone.
inline constexpr int kMaxNames = 64;

/// Of one file.
inline constexpr std::size_t kMaxAttributeBytes = 64 * kKiB;

}  // namespace gcr::memory_files
