// The Slurm library as gcr-slurm-adopt calls it. A job's extern step is a file SPOOL/NODE_JOB with
// its user; the processes that it adopts are appended to it. It puts them into the control group of
// version 2 that SPOOL/NODE_JOB.group leads to, if there is one.
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/types.h>
#include <unistd.h>

enum { kVersion = 38 << 16, kRefusedPid = 4000001 };

struct step_id {
  uint32_t job, component, step;
};

static char group[256];

long slurm_api_version(void) { return kVersion; }

int stepd_connect(const char* spool, const char* node, struct step_id* id, uint16_t* protocol) {
  char path[256];
  if (id->component != 0xfffffffe || id->step != 0xfffffffc) return -1;
  snprintf(path, sizeof(path), "%s/%s_%u", spool, node, id->job);
  snprintf(group, sizeof(group), "%.200s.group/cgroup.procs", path);
  *protocol = 1;
  return open(path, O_RDWR | O_APPEND);
}

uid_t stepd_get_uid(int fd, uint16_t protocol) {
  char text[16] = "";
  (void)protocol;
  return pread(fd, text, sizeof(text) - 1, 0) <= 0 ? (uid_t)-1 : (uid_t)atoi(text);
}

int stepd_add_extern_pid(int fd, uint16_t protocol, pid_t pid) {
  (void)protocol;
  if (pid == kRefusedPid) return -1;
  const int members = open(group, O_WRONLY);
  if (members >= 0 && dprintf(members, "%d\n", pid) < 0) return -1;
  return dprintf(fd, "%d\n", pid) > 0 ? 0 : -1;
}
