// storm: threads that allocate, fill, check and free GPU memory of random sizes without pause.
// After every round it prints "step=<n> checksum=<hex>", n being the allocations so far; an
// undisturbed run with the same options prints the same lines. Wrong content ends it with status 1,
// SIGTERM or the last round with 0.
#include "tests/apps/driver.h"
#include "tests/apps/stencil.h"
#include "tests/apps/storm.h"
#include "tests/support/command_line.h"

int main(int argc, char** argv) {
  unsigned threads = 16;
  unsigned device = 0;
  std::uint64_t round_steps = 1000;
  std::uint64_t allocations = 0;
  bool pool = false;
  gcr::test::CommandLine line("Allocates and frees GPU memory of random sizes on many threads");
  line.add("--threads", threads, "threads").positive();
  line.add("--round", round_steps, "steps of each thread between two lines").positive();
  line.add("--allocations", allocations, "end after so many allocations (0: never)");
  line.add("--device", device, "device ordinal");
  line.add_flag("--pool", pool, "allocate and free in the order of streams");
  line.parse(argc, argv);

  gcr::apps::catch_termination();
  const gcr::apps::Gpu gpu(static_cast<int>(device));
  const gcr::apps::Driver& driver = gpu.driver();
  CUcontext context = nullptr;
  gpu.check(driver.retain_primary(&context, gpu.device()), "retain the primary context");
  gcr::apps::Storm storm(
      {driver.set_current, driver.alloc, driver.free, driver.set_bytes, driver.copy_to_host,
       driver.create_stream, driver.synchronize_stream, driver.alloc_async, driver.free_async,
       driver.set_bytes_async, driver.launch_host},
      context, threads,
      pool ? gcr::apps::StormMemory::kStreamOrdered : gcr::apps::StormMemory::kPlain);
  while (!gcr::apps::termination_requested() && storm.failure().empty() &&
         (allocations == 0 || storm.allocations() < allocations)) {
    storm.round(round_steps);
    gcr::apps::report(storm.allocations(), storm.checksum());
  }
  storm.finish();
  if (!storm.failure().empty()) gcr::apps::fail("go on", storm.failure());
  return 0;
}
