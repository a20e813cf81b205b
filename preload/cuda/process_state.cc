#include "preload/cuda/process_state.h"

#include <new>

namespace gcr::preload {
namespace {

alignas(ProcessState) unsigned char g_storage[sizeof(ProcessState)];

}  // namespace

ProcessState& state() {
  static ProcessState* const instance = new (g_storage) ProcessState;
  return *instance;
}

}  // namespace gcr::preload
