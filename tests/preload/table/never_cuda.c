/* A program that never touches CUDA: says what the library could have changed about it. */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

static int entries_of(const char* path) {
  DIR* folder = opendir(path);
  int count = 0;
  if (folder == NULL) return -1;
  while (readdir(folder) != NULL) ++count;
  closedir(folder);
  return count;
}

int main(void) {
  printf("threads %d descriptors %d\n", entries_of("/proc/self/task"), entries_of("/proc/self/fd"));
  printf("cuInit %d malloc %d nothing %d\n", dlsym(RTLD_DEFAULT, "cuInit") != NULL,
         dlsym(RTLD_DEFAULT, "malloc") != NULL, dlsym(RTLD_DEFAULT, "gcr_nothing") != NULL);
  dlsym(RTLD_DEFAULT, "cuInit");
  /* Whose search failed, before the colon, is the one thing that differs. */
  printf("%s\n", strchr(dlerror(), ':'));
  return 0;
}
