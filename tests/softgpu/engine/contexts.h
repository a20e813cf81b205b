// The lifetime of contexts.
#pragma once

#include "tests/softgpu/engine/process.h"

namespace gcr::softgpu {

std::shared_ptr<Context> make_context(Process& process, int ordinal, unsigned flags, bool primary);

/// Ends a context: waits for its work and frees what it owns. Threads for which it is still current
/// get Result::kContextIsDestroyed.
void end_context(Process& process, const std::shared_ptr<Context>& context);

/// The device's primary context, created on the first request; the ordinal is valid.
std::shared_ptr<Context> retain_primary(Process& process, int ordinal);
/// The same for an interface without reference counts: it stays until it is ended as a whole.
std::shared_ptr<Context> primary_context(Process& process, int ordinal);
/// Releases it once, or, with `whole`, ends it regardless of its reference count.
Result release_primary(Process& process, int ordinal, bool whole);

Result enable_peer_access(Context& context, Context& peer);
Result disable_peer_access(Context& context, Context& peer);

}  // namespace gcr::softgpu
