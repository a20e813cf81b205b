// The functions of libnvidia-ml.so.1 that an agent uses. FAKE_NVML_USED: the used VRAM, in bytes;
// FAKE_NVML_PROCESSES: how many processes there are, numbered from 1000, with a MiB for each number
// from 1.
#include <stdlib.h>

struct memory {
  unsigned version;
  unsigned long long total, reserved, free, used;
};

struct process {
  unsigned pid;
  unsigned long long used;
  unsigned gpu_instance, compute_instance;
};

int nvmlInit_v2(void) { return 0; }
int nvmlShutdown(void) { return 0; }

int nvmlDeviceGetHandleByUUID(const char* uuid, void** device) {
  *device = (void*)uuid;
  return 0;
}

int nvmlDeviceGetMemoryInfo_v2(void* device, struct memory* memory) {
  (void)device;
  if (memory->version != (sizeof(struct memory) | (2U << 24))) return 25;  // of another version
  memory->used = strtoull(getenv("FAKE_NVML_USED"), NULL, 10);
  return 0;
}

int nvmlDeviceGetComputeRunningProcesses_v3(void* device, unsigned* count, struct process* list) {
  (void)device;
  const unsigned number = (unsigned)atoi(getenv("FAKE_NVML_PROCESSES"));
  const unsigned room = *count;
  *count = number;
  if (room < number) return 7;  // too little room
  for (unsigned i = 0; i < number; ++i) {
    list[i].pid = 1000 + i;
    list[i].used = (i + 1ULL) << 20;
  }
  return 0;
}
