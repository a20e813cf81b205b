#include "tests/softgpu/engine/contexts.h"

#include <algorithm>

namespace gcr::softgpu {

std::shared_ptr<Context> make_context(Process& process, int ordinal, unsigned flags, bool primary) {
  auto context = std::make_shared<Context>();
  context->ordinal = ordinal;
  context->flags = flags;
  context->primary = primary;
  context->id = process.next_id++;
  context->legacy = std::make_shared<Stream>();
  context->legacy->context = context;
  context->legacy->kind = StreamKind::kLegacy;
  context->legacy->id = process.next_id++;
  return process.contexts.add(context);
}

void end_context(Process& process, const std::shared_ptr<Context>& context) {
  context->synchronize();
  context->fault = Result::kContextIsDestroyed;
  process.contexts.take(context.get());
  for (const auto& other : process.contexts.all()) {
    std::lock_guard lock(other->mutex);
    other->peers.erase(context.get());
  }
  for (const auto& module : process.modules.all()) {
    if (module->context != context.get()) continue;
    unload_module(process, *module);
    process.modules.take(module.get());
  }
  for (const auto& library : process.libraries.all()) {
    std::lock_guard lock(library->mutex);
    library->modules.erase(context.get());
  }
  process.memory.free_all_of(context.get());
  std::lock_guard lock(context->mutex);
  for (const auto& stream : context->created) process.streams.take(stream.get());
  context->created.clear();
  context->per_thread.clear();
}

namespace {

/// With the mutex.
PrimaryContext& existing_primary(Process& process, int ordinal) {
  PrimaryContext& primary = process.primaries[ordinal];
  if (!primary.context) primary.context = make_context(process, ordinal, primary.flags, true);
  return primary;
}

}  // namespace

std::shared_ptr<Context> retain_primary(Process& process, int ordinal) {
  std::lock_guard lock(process.primary_mutex);
  PrimaryContext& primary = existing_primary(process, ordinal);
  ++primary.retained;
  return primary.context;
}

std::shared_ptr<Context> primary_context(Process& process, int ordinal) {
  std::lock_guard lock(process.primary_mutex);
  PrimaryContext& primary = existing_primary(process, ordinal);
  primary.retained = std::max(primary.retained, 1);
  return primary.context;
}

Result release_primary(Process& process, int ordinal, bool whole) {
  if (process.devices.at(ordinal) == nullptr) return Result::kInvalidDevice;
  std::lock_guard lock(process.primary_mutex);
  PrimaryContext& primary = process.primaries[ordinal];
  if (primary.retained == 0) return whole ? Result::kSuccess : Result::kInvalidContext;
  if (!whole && --primary.retained > 0) return Result::kSuccess;
  primary.retained = 0;
  end_context(process, primary.context);
  primary.context.reset();
  return Result::kSuccess;
}

Result enable_peer_access(Context& context, Context& peer) {
  std::lock_guard lock(context.mutex);
  return context.peers.insert(&peer).second ? Result::kSuccess : Result::kPeerAccessAlreadyEnabled;
}

Result disable_peer_access(Context& context, Context& peer) {
  std::lock_guard lock(context.mutex);
  return context.peers.erase(&peer) == 1 ? Result::kSuccess : Result::kPeerAccessNotEnabled;
}

}  // namespace gcr::softgpu
