#include "preload/withheld.h"

#include <atomic>

#include "preload/log.h"

namespace gcr::preload {
namespace {

constinit std::atomic<unsigned> g_lookups{0};

}  // namespace

void note_withheld(const char* name) {
  g_lookups.fetch_add(1, std::memory_order_relaxed);
  log_line("%s is withheld: this library does not know that driver function", name);
}

unsigned withheld_lookups() { return g_lookups.load(std::memory_order_relaxed); }

}  // namespace gcr::preload
