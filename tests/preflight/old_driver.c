/* A CUDA driver from before release 570: it has nothing that could checkpoint. */
int cuInit(unsigned flags);
int cuInit(unsigned flags) { return flags != 0; }
