#include "migrate-agent/commit/commit_log.h"

namespace gcr::commit {

template <>
Result<SourceLog> SourceLog::create(const std::filesystem::path& state_dir, const Uuid& migration,
                                    journal::Began began) {
  GCR_ASSIGN(auto made, journal::Journal::create(state_dir, migration, journal::Began::SOURCE,
                                                 std::move(began)));
  return SourceLog(std::move(made), SourceState::kWorking);
}

template <>
Result<SourceLog> SourceLog::open(const std::filesystem::path& path, journal::Lock how) {
  GCR_ASSIGN(auto opened, journal::Journal::open(path, how));
  GCR_ASSIGN(const SourceState state, replay_source(opened.records()));
  return SourceLog(std::move(opened), state);
}

template <>
Result<DestinationLog> DestinationLog::create(const std::filesystem::path& state_dir,
                                              const Uuid& migration, journal::Began began) {
  GCR_ASSIGN(auto made, journal::Journal::create(state_dir, migration, journal::Began::DESTINATION,
                                                 std::move(began)));
  return DestinationLog(std::move(made), DestinationState::kBuilding);
}

template <>
Result<DestinationLog> DestinationLog::open(const std::filesystem::path& path, journal::Lock how) {
  GCR_ASSIGN(auto opened, journal::Journal::open(path, how));
  GCR_ASSIGN(const DestinationState state, replay_destination(opened.records()));
  return DestinationLog(std::move(opened), state);
}

}  // namespace gcr::commit
