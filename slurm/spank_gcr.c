// A Slurm plugin (SPANK): `sbatch --migratable` starts the batch script so that it can be migrated.
//
// In plugstack.conf, on all nodes and submit hosts:
//   optional spank_gcr.so [library=FILE] [wait=FILE] [folder=DIR]
// library is libgcr-preload.so, wait is gcr-slurm-wait, folder is [slurm] folder of agent.toml.
//
// The process that Slurm starts becomes gcr-slurm-wait, which never moves. Its child becomes the
// batch script, as the leader of a session, with the preload library. The script is read from a
// memfd, which moves with the job: the copy in slurmd's spool exists on one node only.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <slurm/slurm.h>
#include <slurm/spank.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <unistd.h>

SPANK_PLUGIN(gcr, 1)

static int migratable;
static const char* library = "/usr/lib/gcr-migrate/libgcr-preload.so";
static const char* wait_program = "/usr/libexec/gcr-migrate/gcr-slurm-wait";
static const char* folder = "/run/gcr-migrate-slurm";

static int chosen(int value, const char* argument, int remote) {
  (void)value, (void)argument, (void)remote;
  migratable = 1;
  return 0;
}

static struct spank_option option = {
    "migratable", NULL, "Start the batch script so that it can be moved to another node", 0, 0,
    chosen};

static void configure(int count, char** words) {
  for (int n = 0; n < count; ++n) {
    if (strncmp(words[n], "library=", 8) == 0) library = words[n] + 8;
    if (strncmp(words[n], "wait=", 5) == 0) wait_program = words[n] + 5;
    if (strncmp(words[n], "folder=", 7) == 0) folder = words[n] + 7;
  }
}

int slurm_spank_init(spank_t spank, int count, char** words) {
  configure(count, words);
  return spank_option_register(spank, &option);
}

// Creates a memfd with the content of the file `path`; returns -1 and sets errno on failure.
static int copy_of(const char* path) {
  struct stat file;
  const int from = open(path, O_RDONLY | O_CLOEXEC);
  const int to = memfd_create("slurm_script", 0);
  if (from < 0 || to < 0 || fstat(from, &file) != 0) return -1;
  for (off_t done = 0; done < file.st_size;) {
    const ssize_t sent = sendfile(to, from, &done, (size_t)(file.st_size - done));
    if (sent <= 0) return -1;
  }
  close(from);
  return fchmod(to, 0500) == 0 ? to : -1;
}

static void preload(spank_t spank) {
  char before[4096] = "", all[8192];
  spank_getenv(spank, "LD_PRELOAD", before, sizeof before);
  snprintf(all, sizeof all, "%s%s%s", library, before[0] != '\0' ? ":" : "", before);
  spank_setenv(spank, "LD_PRELOAD", all, 1);
}

// Copies a variable of the job's environment to the environment of this process, which is slurmd's.
static void copy_variable(spank_t spank, const char* name) {
  char value[256] = "";
  spank_getenv(spank, name, value, sizeof value);
  setenv(name, value, 1);
}

// Forks: the process that Slurm started becomes gcr-slurm-wait; in the child, returns 0, and the
// child becomes the script. Returns -1 if the fork fails.
static int fork_waiter(spank_t spank) {
  char pid[16];
  const pid_t child = fork();
  if (child <= 0) return child == 0 ? 0 : -1;
  snprintf(pid, sizeof pid, "%d", child);
  clearenv();
  copy_variable(spank, "SLURM_JOB_ID");
  copy_variable(spank, "SLURMD_NODENAME");
  for (int fd = 3; fd < 1024; ++fd) close(fd);
  execl(wait_program, "gcr-slurm-wait", folder, pid, (char*)NULL);
  _exit(125);
}

// Runs as the job's user, in the process that is about to become the task.
int slurm_spank_task_init(spank_t spank, int count, char** words) {
  uint32_t step = 0;
  int words_of_task = 0;
  char** task = NULL;
  static char path[64];
  (void)count, (void)words;
  if (!migratable) return ESPANK_SUCCESS;
  spank_get_item(spank, S_JOB_STEPID, &step);
  if (step != SLURM_BATCH_SCRIPT) return ESPANK_SUCCESS;
  if (spank_get_item(spank, S_JOB_ARGV, &words_of_task, &task) != ESPANK_SUCCESS ||
      words_of_task < 1) {
    return ESPANK_ERROR;
  }
  const int script = copy_of(task[0]);
  if (script < 0) {
    slurm_error("gcr: cannot copy the batch script %s: %s", task[0], strerror(errno));
    return ESPANK_ERROR;
  }
  preload(spank);
  if (fork_waiter(spank) != 0) {
    slurm_error("gcr: cannot start the batch script under gcr-slurm-wait: %s", strerror(errno));
    return ESPANK_ERROR;
  }
  setsid();
  snprintf(path, sizeof path, "/proc/self/fd/%d", script);
  task[0] = path;
  return ESPANK_SUCCESS;
}
