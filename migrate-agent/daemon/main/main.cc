#include "migrate-agent/daemon/main/agent_main.h"

int main(int argc, char** argv) { return gcr::daemon::agent_main(argc, argv); }
